"""The texts of the tests of real models: prompts, conversations, a passage of a book, texts that are hard to cut."""

from typing import Any

ALICE = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice
she had peeped into the book her sister was reading, but it had no pictures or conversations in it, 'and what is the
use of a book,' thought Alice 'without pictures or conversations?'
So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy and stupid),
whether the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, when
suddenly a White Rabbit with pink eyes ran close by her.
There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit
say to itself, 'Oh dear! Oh dear! I shall be late!' (when she thought it over afterwards, it occurred to her that she
ought to have wondered at this, but at the time it all seemed quite natural); but when the Rabbit actually took a
watch out of its waistcoat-pocket, and looked at it, and then hurried on, Alice started to her feet, for it flashed
across her mind that she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take out of it,
and burning with curiosity, she ran across the field after it, and fortunately was just in time to see it pop down a
large rabbit-hole under the hedge.
In another moment down went Alice after it, never once considering how in the world she was to get out again.
The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down, so suddenly that Alice had
not a moment to think about stopping herself before she found herself falling down a very deep well.
Either the well was very deep, or she fell very slowly, for she had plenty of time as she went down to look about her
and to wonder what was going to happen next. First, she tried to look down and make out what she was coming to, but it
was too dark to see anything; then she looked at the sides of the well, and noticed that they were filled with
cupboards and book-shelves; here and there she saw maps and pictures hung upon pegs. She took down a jar from one of
the shelves as she passed; it was labelled 'ORANGE MARMALADE', but to her great disappointment it was empty: she did
not like to drop the jar for fear of killing somebody, so managed to put it into one of the cupboards as she fell past
it.""".replace("\n", " ")
"""The beginning of Lewis Carroll's "Alice's Adventures in Wonderland" (1865), in one line: some 500 tokens."""

PROMPTS = (
    "Once upon a time",
    "The three laws of thermodynamics are:\n1.",
    "def fibonacci(n):\n    ",
    "Il était une fois, dans un petit village de",
    "1, 1, 2, 3, 5, 8, 13, 21,",
)

QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "What is the capital of France?"}]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "a question": QUESTION,
    "a system prompt": [
        {"role": "system", "content": "Answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    "several turns": [
        {"role": "user", "content": "My name is Ada. I have 3 cats."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "How many legs do my cats have?\nThink first."},
    ],
}

AWKWARD = (
    "",
    " ",
    "   leading and trailing   ",
    "\n\n\n",
    "tab\tand\r\nCRLF \x0b\x0c",
    "a\u00a0b\u2009c\u3000d\u200be",
    "3.14159 1234567890 2026-11-29 0x1F ½ ② ٣٤",
    "I'm they're WE'LL don't 'tis it's'",
    "CamelCase snake_case kebab-case x->y == != <= :=",
    "naïve café cafe\u0301 Ångström \u1e9b\u0323",
    "Привет, как дела? Γειά σου Κόσμε שלום עולם مرحبا بالعالم",
    "你好，世界。日本語のテキスト 한국어 텍스트 ไทย",
    "👍 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 \U0001f9d1\U0001f3fd‍🚀",
    "http://example.com/a?b=c&d=%20#e user@host.org",
    "<|im_start|>user\nhi<|im_end|><|endoftext|>",
    "<|im_start |> <| im_end|> <|im_end",
    '{"a": [1, 2.5e-3, null], \'b\': "\\u00e9\\n"}',
    "\x00\x01\x7f\ufffd\ufeff\U000e0001",
    "a" * 200,
    "!" * 33 + " " * 33 + "\n" * 33,
    "the " * 50,
)
