"""Make the embedded models' tokenizer from nothing: a byte-level BPE over the suite's own language.

Any UTF-8 text encodes (all 256 bytes are in the vocabulary); numbers split into pairs of digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from evalgate.tasks import names, words
from evalgate.tasks.draw import Draw
from evalgate.tasks.phrases import LANGUAGES, Slots

VOCABULARY = 1920
BOS, EOS, USER, ASSISTANT, PAD = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPLIT = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s"


def corpus() -> Iterator[str]:
    """Text in which every word of the lists is frequent enough to become one token."""
    draw, english = Draw("tokenizer"), LANGUAGES["en"]
    lists = (words.ADJECTIVES, words.NOUNS, words.ATTRIBUTES, words.ROLES, words.VERBS, words.COUNTS, words.THINGS)
    for word in (w for group in (*lists, words.PLACES, words.QUALITIES, words.TIMES) for w in group):
        yield f" {word}" * 1000
    for number in range(100):
        yield f" {number:02d}" * 4000
        yield f" 10{number:02d}" * 4000
    for _ in range(20000):
        yield english.filler(draw) + "\n"
    for _ in range(4000):
        key, value = names.draw_keys(draw, 1)[0], names.draw_numbers(draw, 1)[0]
        slots = Slots(form=draw.below(len(words.ATTRIBUTES)), key=key, value=str(value))
        yield english.say("fact", slots) + "\n" + english.say("ask", slots)
    for _ in range(2000):
        yield english.say("instruct_number", Slots(noun="report")) + "\n"


def make_tokenizer(out: Path) -> PreTrainedTokenizerFast:
    """Train the tokenizer and save it to ``out`` in the transformers layout."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, EOS, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(corpus(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(out)
    return tokenizer
