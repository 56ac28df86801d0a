"""Korean: the English lists word for word, so that a key means the same in both; fillers are of their own.

A particle that depends on the sound before it is written in both forms, ``은(는)``, and chosen at the end.
"""

from __future__ import annotations

import re

from evalgate.tasks.draw import Draw
from evalgate.tasks.phrases.phrases import Phrases


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    "호박색 하늘색 쓰디쓴 금발의 용감한 밝은 청동 차분한 영리한 구리 산호빛 우주의 진홍빛 먼지낀 열성적인 "
    "이른 희미한 사나운 얼어붙은 온화한 유령같은 황금빛 웅장한 아련한 무거운 속빈 겸손한 얼음같은 남색 "
    "상앗빛 유쾌한 예리한 게으른 활기찬 외로운 시끄러운 운좋은 그윽한 안개낀 수수한 좁은 고귀한 올리브색 "
    "참을성있는 평범한 극지의 자랑스러운 보랏빛 조용한 재빠른 소박한 주홍빛 비밀의 수줍은 은빛 졸린 "
    "태양의 얼룩진 꾸준한 폭풍같은 화창한 말끔한 벨벳 제비꽃색"
)

NOUNS = _words(
    "도토리 닻 사슴뿔 사과 화살 오소리 밴조 바구니 봉화 비버 종 들소 바위 덤불 다리 양동이 물소 선인장 "
    "낙타 양초 카누 협곡 성 삼나무 첼로 체리 코브라 혜성 콘도르 퓨마 코요테 요람 두루미 귀뚜라미 까마귀 "
    "왕관 단검 데이지 돌고래 당나귀 용 북 독수리 잉걸불 송골매 고사리 족제비 깽깽이 되새 피리 여우 개구리 "
    "석류석 도마뱀붙이 빙하 거위 망치 항구 하프 매 개암 왜가리 말벌 섬 자칼 재규어 재스민 주전자 연 "
    "코알라 사다리 석호 등불 레몬 표범 백합 사자 도마뱀 라마 바닷가재 연꽃 스라소니 자석 망고 단풍나무 "
    "대리석 초원 유성 거울 두더지 달 말코손바닥사슴 나방 바늘 쐐기풀 참나무 오셀롯 문어 양파 난초 수달 "
    "올빼미 판다 흑표범 앵무새 복숭아 진주 조약돌 펠리컨 후추 비둘기 소나무 행성 자두 조랑말 양귀비 퍼핀 "
    "메추라기 석영 토끼 갈까마귀 리본 강 울새 로켓 장미 담비 안장 연어 상어 참새 거미 가문비나무 오징어 "
    "황새 제비 백조 엉겅퀴 호랑이 두꺼비 횃불 송어 튤립 터널 거북이 살무사 호두 바다코끼리 흰담비 고래 "
    "버드나무 늑대 굴뚝새 얼룩말"
)

FORMS = _words(
    "출입 계좌 배지 침상 보관통 객실 사건 도표 청구 코드 계약 갑판 일람 서류철 등록 파일 항공편 탑승구 "
    "송장 열쇠 면허 사물함 일지 부지 회원 메모 주문 소포 허가 전화 비밀 구획 보험 포트 선반대 영수증 기록 "
    "노선 좌석 일련 서가 슬롯 매대 승차권 선로 금고 비자 상품권"
)

CODE_WORDS = _words(
    "가람 나래 다솜 라온 마루 바람 아라 구름 노을 이슬 서리 무지개 번개 우레 파도 모래 갯벌 들판 언덕 "
    "고개 골짜기 샘물 시내 폭포 여울 나루 누리 미르 버들 샛별 솔잎 온달 은하 이랑 줄기 참꽃 초롱 큰솔 "
    "토담 푸름 한결 해솔 햇살 호수 희망 다온 가온 보람 슬기 한울 도담 별하 윤슬 단비 새론 아람"
)

ORDINALS = _words(
    "첫번째 두번째 세번째 네번째 다섯번째 여섯번째 일곱번째 여덟번째 아홉번째 열번째 열한번째 열두번째 "
    "열세번째 열네번째 열다섯번째 열여섯번째"
)

ROLES = _words(
    "직원 화가 제빵사 중개인 건축가 선장 목수 약사 서기 요리사 배달원 상인 치과의사 기사 편집자 농부 "
    "정원사 경비원 안내원 판사 변호사 지배인 석공 시장 간호사 장교 조종사 배관공 인쇄공 선원 가수 학생 "
    "외과의사 재단사 교사 용접공 작가"
)

VERBS = _words(
    "샀다 날랐다 점검했다 닦았다 세었다 덮었다 배달했다 설명했다 찾았다 모았다 숨겼다 살펴보았다 "
    "들어올렸다 실었다 쟀다 옮겼다 정리했다 포장했다 칠했다 밀었다 고쳤다 돌려주었다 굴렸다 보냈다 "
    "보여주었다 팔았다 쌓았다 시험했다 풀었다 씻었다"
)

THINGS = _words(
    "나무통 건전지 긴의자 담요 판자 책 병 상자 벽돌 붓 단추 전선 양탄자 의자 시계 외투 동전 컵 커튼 책상 "
    "문짝 엔진 봉투 선풍기 깃발 액자 장갑 모자 안전모 경첩 재킷 단지 전등 지도 매트 모터 못 그물 냄비 "
    "종이 펜 파이프 접시 펌프 라디오 밧줄 깔개 자루 나사 신발 표지판 숟가락 우표 탁자 천막 타일 연장 수건 "
    "튜브 바퀴 창문 철사"
)

PLACES = _words(
    "공항 다락방 빵집 은행 헛간 지하실 양조장 찻집 교정 창고 예배당 진료소 대학 법정 안뜰 부두 공장 농장 "
    "대장간 차고 정원 강당 격납고 병원 호텔 부엌 연구실 세탁소 도서관 시장통 방앗간 광산 박물관 사무실 "
    "과수원 궁전 공원 선착장 광장 채석장 학교 오두막 가게 마구간 경기장 역 작업실 사원 극장 탑 일터 마당"
)

COUNTS = _words("두 세 네 다섯 여섯 일곱 여덟 아홉 열 열한 열두 스무 서른 마흔 쉰 예순")

QUALITIES = _words(
    "부서진 값싼 깨끗한 축축한 어두운 찌그러진 더러운 텅빈 약한 새로산 초록 회색 커다란 가벼운 기다란 "
    "낡은 분홍 반들반들한 빨간 둥근 녹슨 짧은 조그만 부드러운 네모난 두꺼운 얇은 찢어진 젖은 하얀 넓은 "
    "노란"
)

TIMES = _words(
    "가을 새벽 저녁 해질녘 금요일 일월 점심 삼월 자정 월요일 아침 정오 시월 토요일 봄 여름 일요일 목요일 "
    "화요일 수요일 겨울"
)

CITIES = (
    ("리옹", "프랑스"),
    ("오사카", "일본"),
    ("토리노", "이탈리아"),
    ("빌바오", "스페인"),
    ("함부르크", "독일"),
    ("크라쿠프", "폴란드"),
    ("포르투", "포르투갈"),
    ("베르겐", "노르웨이"),
    ("말뫼", "스웨덴"),
    ("오르후스", "덴마크"),
    ("탐페레", "핀란드"),
    ("안트베르펜", "벨기에"),
    ("위트레흐트", "네덜란드"),
    ("그라츠", "오스트리아"),
    ("바젤", "스위스"),
    ("브르노", "체코"),
    ("세게드", "헝가리"),
    ("바르나", "불가리아"),
    ("파트라스", "그리스"),
    ("이즈미르", "튀르키예"),
    ("부산", "한국"),
    ("우한", "중국"),
    ("푸네", "인도"),
    ("다낭", "베트남"),
    ("세부", "필리핀"),
    ("퍼스", "호주"),
    ("더니든", "뉴질랜드"),
    ("캘거리", "캐나다"),
    ("푸에블라", "멕시코"),
    ("헤시피", "브라질"),
    ("로사리오", "아르헨티나"),
    ("쿠스코", "페루"),
    ("칼리", "콜롬비아"),
    ("몸바사", "케냐"),
    ("카노", "나이지리아"),
    ("더반", "남아프리카"),
    ("룩소르", "이집트"),
    ("페스", "모로코"),
    ("골웨이", "아일랜드"),
    ("하이파", "이스라엘"),
)

TEMPLATES = {
    "instruct_number": "다음 {noun}을(를) 읽고 그 뒤의 질문에 번호만으로 답하라. "
    "번호가 여러 번 나오면 마지막 것이 맞다.",
    "instruct": "다음 {noun}을(를) 읽고 그 뒤의 질문에 묻는 것만으로 답하라. "
    "여러 번 나온 것은 모두를 묻지 않는 한 마지막 것이 맞다. 나오지 않은 것을 물으면 없음이라고 답하라.",
    "fact": "{key}의 {form} {kind}은(는) {value}이다.",
    "ask": "{key}의 {form} {kind}은(는) 무엇인가?",
    "one_of": "{key}의 {form} {kind} 가운데 하나는 {value}이다.",
    "ask_all": "{key}의 {form} 번호는 모두 무엇인가?",
    "ask_many": "{keys}의 {form} 번호는 각각 무엇인가?",
    "ask_nth": "{key}의 {form} 번호로 {nth} 나온 것은 무엇인가?",
    "ask_count": "{key}의 {form} 번호는 몇 번 나왔는가?",
    "same_as": "{key}의 {form} 번호는 {other}의 것과 같다.",
    "partner": "{key}의 {form} 짝은 {other}이다.",
    "ask_partner": "{key}의 짝의 {form} 번호는 무엇인가?",
    "seen": "{key}을(를) 마지막으로 본 곳은 {place}이다.",
    "ask_seen": "그 가운데 {region}에서 마지막으로 본 것은 무엇인가?",
    "ask_every": "{noun}을(를) 요약하라. 나온 {form} 번호는 무엇무엇인가?",
    "function": "def {slug}(): return {value}",
    "ask_function": "{slug}()은(는) 무엇을 돌려주는가?",
    "claim": "{key}: 내 {form} 번호는 {value}이다.",
    "correction": "{key}: 미안, 내 {form} 번호는 {value}이다.",
    "ask_claim": "{key}이(가) 말한 자기 {form} 번호는 무엇인가?",
    "ask_speaker": "자기 {form} 번호가 {value}(이)라고 말한 것은 누구인가?",
    "ask_frequent": "가장 자주 나온 낱말 {copies}개는 무엇인가?",
    "file": "{key}에 관한 문서. {before} {form} 번호는 {value}이다. {after}",
    "keeper_file": "{key}에 관한 문서. {before} 관리자는 {other}이다. {after}",
    "ask_file": "{key}에 관한 문서에 나온 {form} 번호는 무엇인가?",
    "ask_keeper_file": "{key}의 관리자에 관한 문서에 나온 {form} 번호는 무엇인가?",
    "none": "없음",
}

_PARTICLE = re.compile(r"(.)(은\(는\)|이\(가\)|을\(를\)|과\(와\)|\(이\))", re.DOTALL)
_OPEN = {"은(는)": "는", "이(가)": "가", "을(를)": "를", "과(와)": "와", "(이)": ""}
_CLOSED = {"은(는)": "은", "이(가)": "이", "을(를)": "을", "과(와)": "과", "(이)": "이"}
_CLOSED_DIGITS = "013678"
"""Digits whose Korean names end in a consonant."""


def _polish(text: str) -> str:
    return _PARTICLE.sub(lambda match: match[1] + (_CLOSED if _closed(match[1]) else _OPEN)[match[2]], text)


def _closed(letter: str) -> bool:
    """Whether the syllable ends in a consonant (Unicode 15, section 3.12: 28 finals to each vowel)."""
    if "가" <= letter <= "힣":
        return (ord(letter) - ord("가")) % 28 > 0
    return letter in _CLOSED_DIGITS


def _filler(draw: Draw) -> str:
    shape = draw.below(4)
    role, verb, thing = draw.choice(ROLES), draw.choice(VERBS), draw.choice(THINGS)
    place = draw.choice(PLACES)
    if shape == 0:
        return _polish(f"{place} 근처에서 {role}이(가) {thing} {draw.choice(COUNTS)} 개를 {verb}.")
    if shape == 1:
        return _polish(f"{draw.choice(TIMES)}에 {role}이(가) {draw.choice(QUALITIES)} {thing}을(를) {verb}.")
    if shape == 2:
        return _polish(f"{place}에서는 {role}이(가) {draw.choice(TIMES)}까지 {thing}을(를) {verb}.")
    return _polish(f"{draw.choice(QUALITIES)} {thing}이(가) {draw.choice(TIMES)}까지 {place} 뒤에 놓여 있었다.")


KOREAN = Phrases(
    adjectives=ADJECTIVES,
    nouns=NOUNS,
    forms=FORMS,
    code_words=CODE_WORDS,
    kinds={"number": "번호", "word": "낱말", "uuid": "식별자"},
    ordinals=ORDINALS,
    roles=ROLES,
    places=CITIES,
    key="{adjective} {noun}",
    and_=(", ", ", "),
    article="",
    templates=TEMPLATES,
    filler=_filler,
    polish=_polish,
)
