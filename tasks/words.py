"""The English word lists that needles and filler are made of; no word stands in two lists.

Keys are an adjective and a noun, forms are attributes, values are six-digit numbers or code words.
A quarter of all keys and values is reserved for training and appears in no suite (:func:`reserved_key`,
:func:`reserved_value`), so that a model trained on this generator has never seen what it is asked.
"""

from __future__ import annotations

from evalgate.tasks.draw import scatter


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    "amber azure bitter blond brave bright bronze calm clever copper coral cosmic crimson dusty eager early faint "
    "fierce frozen gentle ghostly golden grand hazy heavy hollow humble icy indigo ivory jolly keen lazy lively "
    "lonely loud lucky mellow misty modest narrow noble olive patient plain polar proud purple quiet rapid rustic "
    "scarlet secret shy silver sleepy solar spotted steady stormy sunny tidy velvet violet"
)

NOUNS = _words(
    "acorn anchor antler apple arrow badger banjo basket beacon beaver bell bison boulder bramble bridge bucket "
    "buffalo cactus camel candle canoe canyon castle cedar cello cherry cobra comet condor cougar coyote cradle crane "
    "cricket crow crown dagger daisy dolphin donkey dragon drum eagle ember falcon fern ferret fiddle finch flute "
    "fox frog garnet gecko glacier goose hammer harbor harp hawk hazel heron hornet island jackal jaguar jasmine "
    "kettle kite koala ladder lagoon lantern lemon leopard lily lion lizard llama lobster lotus lynx magnet mango "
    "maple marble meadow meteor mirror mole moon moose moth needle nettle oak ocelot octopus onion orchid otter owl "
    "panda panther parrot peach pearl pebble pelican pepper pigeon pine planet plum pony poppy puffin quail quartz "
    "rabbit raven ribbon river robin rocket rose sable saddle salmon shark sparrow spider spruce squid stork "
    "swallow swan thistle tiger toad torch trout tulip tunnel turtle viper walnut walrus weasel whale willow wolf wren "
    "zebra"
)

ATTRIBUTES = _words(
    "access account badge berth bin cabin case chart claim code contract deck docket dossier entry file flight gate "
    "invoice key licence locker log lot member note order parcel permit phone pin plot policy port rack receipt record "
    "route seat serial shelf slot stall ticket track vault visa voucher"
)

ROLES = _words(
    "agent artist baker broker builder captain carpenter chemist clerk cook courier dealer dentist doctor driver "
    "editor engineer farmer gardener guard guide janitor judge lawyer manager mason mayor nurse officer painter pilot "
    "plumber printer ranger sailor singer student surgeon tailor teacher trader waiter welder writer"
)

VERBS = _words(
    "bought carried checked cleaned counted covered delivered described dropped found gathered hid inspected labelled "
    "lifted loaded measured moved ordered packed painted pushed repaired returned rolled sent shipped showed sold "
    "sorted stacked stored tested traded unpacked washed weighed wrapped"
)

COUNTS = _words("two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty")

THINGS = _words(
    "barrels batteries benches blankets boards books bottles boxes bricks brushes buttons cables carpets chairs clocks "
    "coats coins cups curtains desks doors engines envelopes fans flags frames gloves hats helmets hinges jackets jars "
    "lamps letters locks maps mats motors nails nets pans papers pens pipes plates pumps radios ropes rugs sacks "
    "screws sheets shoes signs spoons stamps tables tents tiles tools towels tubes wheels windows wires"
)

PLACES = _words(
    "airport attic bakery bank barn basement brewery cafe campus cellar chapel clinic college corner court dairy depot "
    "dock factory farm forge garage garden hall hangar hospital hotel kitchen laboratory laundry library market mill "
    "mine museum office orchard palace park pier plaza prison quarry ranch school shed shop stable stadium station "
    "studio temple theatre tower university warehouse workshop yard"
)

QUALITIES = _words(
    "broken cheap clean damp dark dented dirty empty fragile fresh green grey large light long new old orange pink "
    "polished red round rusty short small soft square striped thick thin torn used wet white wide wooden yellow"
)

TIMES = _words(
    "autumn dawn dinner dusk evening friday january lunch march midnight monday morning noon october saturday spring "
    "summer sunday sunset thursday tuesday wednesday winter"
)

CODE_WORDS = _words(
    "alpha anvil apricot atlas bamboo basil birch bravo cameo carbon cipher citrus clover cobalt cocoa delta denim "
    "domino echo elbow fable fathom foxtrot fresco galaxy gamma ginger granite hickory indium jigsaw juniper kilo "
    "lambda linen lunar magma maize nectar nickel nylon omega opal oscar papaya pixel plasma prism quiver radish "
    "romeo saffron sierra sigma silica tango tempo topaz turbo umbra vanilla vector vortex whisky xenon "
    "yankee yonder zephyr zigzag zinc"
)

ORDINALS = _words(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth"
)

CITIES = (
    ("Lyon", "France"),
    ("Osaka", "Japan"),
    ("Turin", "Italy"),
    ("Bilbao", "Spain"),
    ("Hamburg", "Germany"),
    ("Krakow", "Poland"),
    ("Porto", "Portugal"),
    ("Bergen", "Norway"),
    ("Malmo", "Sweden"),
    ("Aarhus", "Denmark"),
    ("Tampere", "Finland"),
    ("Antwerp", "Belgium"),
    ("Utrecht", "Netherlands"),
    ("Graz", "Austria"),
    ("Basel", "Switzerland"),
    ("Brno", "Czechia"),
    ("Szeged", "Hungary"),
    ("Varna", "Bulgaria"),
    ("Patras", "Greece"),
    ("Izmir", "Turkey"),
    ("Busan", "Korea"),
    ("Wuhan", "China"),
    ("Pune", "India"),
    ("Da Nang", "Vietnam"),
    ("Cebu", "Philippines"),
    ("Perth", "Australia"),
    ("Dunedin", "New Zealand"),
    ("Calgary", "Canada"),
    ("Puebla", "Mexico"),
    ("Recife", "Brazil"),
    ("Rosario", "Argentina"),
    ("Cusco", "Peru"),
    ("Cali", "Colombia"),
    ("Mombasa", "Kenya"),
    ("Kano", "Nigeria"),
    ("Durban", "South Africa"),
    ("Luxor", "Egypt"),
    ("Fez", "Morocco"),
    ("Galway", "Ireland"),
    ("Haifa", "Israel"),
)
"""A city and the country that it lies in: general knowledge, no word of either in the other."""


def reserved_key(adjective: int, noun: int) -> bool:
    """Whether the key of these word indices is reserved for training."""
    return _quarter(adjective * 1_000_003 + noun)


def reserved_value(value: int) -> bool:
    """Whether this six-digit number is reserved for training."""
    return _quarter(value)


def _quarter(number: int) -> bool:
    """A fixed quarter of all numbers, scattered: a model must not be able to learn which ones it was trained on.

    A rule on the digits was tried: models learned it, and would not say a number that broke it.
    """
    return scatter(number) % 4 == 0
