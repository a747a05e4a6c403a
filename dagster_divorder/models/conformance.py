"""Texts on which a fast tokenizer must give the same ids as the reference before it is trusted.

Guarantee: fixed texts, the same on every machine. Cost: some 60 kB. Known weakness: a finite set proves no
equality; a sample of the corpus is compared as well.
"""

from __future__ import annotations

from collections.abc import Iterable

SPELLED = 100
TEXTS = (
    "",
    "The quick brown fox doesn't jump; it's over there, they'll say. WE'LL SHOUT, I'M SURE! naïve façade",
    "Der Fußgänger überquerte die Straße. STRASSE ẞ ŒUVRE œuvre ﬁn ﬀ ĳ ǆ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΌΣΟΣ όσος",
    "دَخَلَ الوَلَدُ إلى المَدرَسَةِ، ثُمَّ خَرَجَ؟ ١٢٣٤٥ ـــ ﷺ",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה; שָׁלוֹם עֲלֵיכֶם",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता है। क्ष त्र ज्ञ",
    "ทุกคนมีสิทธิในการดำรงชีวิต เสรีภาพ และความมั่นคง",
    "ཨོཾ་མ་ཎི་པདྨེ་ཧཱུྃ། မြန်မာဘာသာ ភាសាខ្មែរ ລາວ",
    "天地玄黃,宇宙洪荒。日月盈昃、辰宿列張!「你好」『再見』",
    "いろはにほへと ちりぬるを。カタカナ ｶﾀｶﾅ がぎぐげご がぎぐげご",
    "모든 인간은 태어날 때부터 자유로우며 모든 인간은",
    "ᚠᛇᚻ ᛒᛦᚦ 𐍈𐌰𐌹 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 𓀀𓁐 𠜎𠜱𡿺",
    "Tiếng Việt: Tất cả mọi người sinh ra đều được tự do và bình đẳng. ế ế",
    "ქართული Հայերեն አማርኛ ᐃᓄᒃᑎᑐᑦ தமிழ் తెలుగు മലയാളം",
    "👨‍👩‍👧‍👦 👩🏽‍🚀 🏳️‍🌈 🇩🇪🇯🇵🇺 ☺️ ☺ 1️⃣ #️⃣ ❤️‍🔥 🫠",
    "e\u0301 \u00e9 o\u0308\u0304 \u0301start Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324",
    "\u212b \u00c5 A\u030a \u1e9b\u0323 \uac01 \u1100\u1161\u11a8 \ufb01 \u2460 \u00bd \u2167",
    "\u200eleft\u200f right \u202bembedded\u202c \u2066isolate\u2069 \u061c",
    "a\u00a0b\u2009c\u3000d\u202fe\u1680f\u2028g\u2029h\u0085i\ufeffj\u200bk\u2060l",
    "\ud7ff\ue000\uf8ff\ufffd\ufffe\uffff\U00010000\U0001ffff\U000e0001\U000f0000\U0010fffd\U0010ffff",
    "".join(map(chr, range(32))) + "\x7f" + "".join(map(chr, range(0x80, 0xA0))),
    "\x00",
    "a\x00b\x00\x00 c\x00",
    "½ ² ³ ¼ ٣ ४ 五 Ⅷ ⑧ 𝟖 8 x² H₂O 10⁻³",
    "“quotes” ‘single’ it’s ‚low‘ «guillemets» – — … • · ‰ € £ ¥ ₿ ™ © → ⇒ ∀x∈ℝ ∑ √2 ≠ ≤",
    "I'M we'Ll he'S 'tis 'S 'LL ' ' '' 'ſ ’s ’re don''t d'accord l'été",
    *(spaces * n for spaces in (" ", "\n", "\t", "\r", "\r\n", " \n") for n in (1, 2, 3, 16, 64, 1000)),
    " leading and trailing ",
    "   three\n\n\nblank lines\n\n \n\t\n  end   ",
    "CRLF\r\n\r\nlines\r\n  indented\r\rreturns\r \n",
    "tab\tseparated\t\tvalues \t mixed\n\t\tindented  a b  c   d    e     f      g",
    "x" + " " * 300 + "y" + "\n" * 300 + "z",
    "0 1 12 123 1234 12345 123456 1234567 0.1 1,000,000.00 1e-9 0xFF 1/2 2024-02-29T23:59:60Z +49 (0)30 12",
    "1a2b3c 4d5 v1.2.3 3rd 21st 90s '90s 9'9 ---- ==== **** ____ .... !!!! ???? #### ///// \\\\\\\\ |||| ~~~~",
    "a-b_c.d/e\\f:g;h,i!j?k(l)m[n]o{p}q<r>s'u\"v`w~x@y#z$1%2^3&4*5+6=7|8",
    "def f(x: int) -> str:\n    '''Doc.'''\n    return f\"{x!r:>10}\"  # comment\n\n\nclass A(B):\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c->d; } // done\n#include <stdio.h>\n",
    '{"key": [1, 2.5, null, true], "nested": {"a": "\\u00e9\\n"}}\n<div class="x">&amp;</div>',
    "https://user:pass@example.org:8080/a/b%20c?d=e&f[]=g#h user.name+tag@mail.example.co.uk C:\\dir\\file.txt",
    "SELECT * FROM t WHERE a='b' AND c<>d;\n$ ls -la | grep -v '^d' > /dev/null 2>&1 && echo \"$HOME\"",
    "camelCaseWord PascalCaseWord snake_case_word SCREAMING_CASE kebab-case ALLCAPSword wordALLCAPS iPhone McDonald",
    "\\begin{equation} E = mc^2 \\label{eq:1} \\end{equation} $\\alpha_{i}^{2}$",
    *(text * 1000 for text in ("a", "ab", "3", "-", "-=", "漢", "👍", "e\u0301", "word ")),
    "-" * 500 + "=" * 500 + "-=" * 250,
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 20,
)


def conformance_texts(added: Iterable[str]) -> list[str]:
    """The fixed texts, and the tokenizer's added tokens (at most SPELLED of them) alone, in text, doubled and
    cut off."""
    tokens = list(added)
    usual = ("<|endoftext|>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "<pad>")
    texts = [*TEXTS, *(f"text {end} text{end}" for end in usual)]
    for token in tokens[:: 1 + len(tokens) // SPELLED]:
        texts += [token, f"in{token}text", f"in {token} text", f"{token}{token}", f"\n{token}\n", token[:-1]]
    return texts
