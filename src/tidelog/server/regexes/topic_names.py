r"""Regular expressions over names of topics: Unicode's classes, as far as such names have letters.

Names of topics have 65 letters, so of `\p{..}` it only matters which of those are in it. Names of
categories and scripts, and what `(?i)` does to them, are RE2J's.

Source: KIP-848 (a whole name has to match); Kafka 4.3's RE2J.
"""

import string
import unicodedata
from typing import Final

from tidelog.server.regexes.characters import EVERYTHING, Ranges, union
from tidelog.server.regexes.matching import Regex

_LETTERS: Final = string.ascii_letters
ALPHABET: Final = _LETTERS + string.digits + "._-"
_CATEGORIES: Final = """
    C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps
    S Sc Sk Sm So Z Zl Zp Zs
"""
# Scripts that names of topics have no letter of.
_FOREIGN: Final = """
    Arabic Armenian Avestan Balinese Bamum Batak Bengali Bopomofo Brahmi Braille Buginese Buhid
    Canadian_Aboriginal Carian Cham Cherokee Coptic Cuneiform Cypriot Cyrillic Deseret Devanagari
    Egyptian_Hieroglyphs Ethiopic Georgian Glagolitic Gothic Greek Gujarati Gurmukhi Han Hangul
    Hanunoo Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi
    Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khmer Lao Lepcha
    Limbu Linear_B Lisu Lycian Lydian Malayalam Mandaic Meetei_Mayek Mongolian Myanmar New_Tai_Lue
    Nko Ogham Ol_Chiki Old_Italic Old_Persian Old_South_Arabian Old_Turkic Oriya Osmanya Phags_Pa
    Phoenician Rejang Runic Samaritan Saurashtra Shavian Sinhala Sundanese Syloti_Nagri Syriac
    Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Tamil Telugu Thaana Thai Tibetan Tifinagh Ugaritic
    Unknown Vai Yi
"""
# What `(?i)` adds: to small letters only those that have more than two cases.
_FOLDED: Final = {"Lu": string.ascii_lowercase, "Ll": "KS"}


def compile_topics(text: str) -> Regex:
    """An expression of a subscription.

    Raises:
        InvalidRegex: It breaks a rule, or is too large.
    """
    return Regex(text, find_class=find_topic_class)


def find_topic_class(name: str, *, ignores_case: bool) -> Ranges | None:
    """The letters of a category or a script, None for a name that is not known."""
    if name == "Any":
        return EVERYTHING
    if name in _CATEGORIES.split():
        letters = "".join(c for c in ALPHABET if unicodedata.category(c).startswith(name))
        return _ranges(letters + (_FOLDED.get(name, "") if ignores_case else ""))
    if name in _FOREIGN.split():
        return ()
    scripts = {"Latin": _LETTERS, "Common": ALPHABET.removeprefix(_LETTERS)}
    return _ranges(scripts[name]) if name in scripts else None


def _ranges(letters: str) -> Ranges:
    return union((ord(letter), ord(letter)) for letter in letters)
