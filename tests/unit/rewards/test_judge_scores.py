"""The score in a judge's reply: what is one, what is none, and what could be either."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.rewards.judge_scores import read_score

TEN = (0.0, 10.0)
SIGNED = (-10.0, 10.0)
HUNDRED = (0.0, 100.0)
MILLION = (0.0, 1e6)


@pytest.mark.parametrize(
    ("reply", "scale", "expected"),
    [
        # numbers
        pytest.param("Score: 8", TEN, 8.0, id="the form that is asked for"),
        pytest.param("score = 7.25", TEN, 7.25, id="an equals sign and a fraction"),
        pytest.param("Score: .5", TEN, 0.5, id="no figure before the point"),
        pytest.param("Score: 1e-1", TEN, 0.1, id="an exponent"),
        pytest.param("Score: 1.0e1", TEN, 10.0, id="an exponent behind a fraction"),
        pytest.param("Score: 5E+0", TEN, 5.0, id="an exponent with a plus sign"),
        pytest.param("Score: 1e400", TEN, None, id="a number that no float has"),
        pytest.param("Score: 08", TEN, 8.0, id="a leading zero"),
        pytest.param("Score: nan", TEN, None, id="not a number"),
        pytest.param("Score: 0x8", TEN, None, id="hexadecimal"),
        pytest.param("Score: 8th", TEN, None, id="an ordinal"),
        pytest.param("Score: eight", TEN, None, id="a numeral"),
        pytest.param("Score: 8.5.1", TEN, None, id="two points"),
        # signs
        pytest.param("Score: -5", SIGNED, -5.0, id="a minus sign"),
        pytest.param("Score:-5", SIGNED, -5.0, id="a minus sign without a space"),
        pytest.param("Score: \u22125", SIGNED, -5.0, id="the typographic minus"),
        pytest.param("Score: \u20135", SIGNED, -5.0, id="a dash for a minus"),
        pytest.param("Score: +5", SIGNED, 5.0, id="a plus sign"),
        pytest.param("Score: -7", TEN, None, id="below the scale"),
        pytest.param("Score -5", SIGNED, None, id="a minus sign or a dash"),
        pytest.param("Score: - 5", SIGNED, None, id="a minus sign or a bullet"),
        pytest.param("Score \u2014 8", TEN, 8.0, id="a long dash for a colon"),
        pytest.param("Score\uff1a8", TEN, 8.0, id="a wide colon"),
        # commas
        pytest.param("Score: 8,5", TEN, 8.5, id="a decimal comma"),
        pytest.param("Score: 0,125", TEN, 0.125, id="a decimal comma behind a zero"),
        pytest.param("Score: 1,000", MILLION, None, id="one, or a thousand"),
        pytest.param("Score: 1,000.5", MILLION, 1000.5, id="thousands with a point"),
        pytest.param("Score: 1.000,5", MILLION, 1000.5, id="thousands with a comma"),
        pytest.param("Score: 100,000,0", MILLION, None, id="commas that are nothing"),
        pytest.param("Score: 1 000", MILLION, None, id="a space in the number"),
        pytest.param("Score: 8, 9", TEN, None, id="two numbers"),
        pytest.param("Score: 8, since it is right.", TEN, 8.0, id="a comma of the sentence"),
        # scales
        pytest.param("Score: 8/10", TEN, 8.0, id="of ten"),
        pytest.param("Score: 8 / 10.", TEN, 8.0, id="of ten with spaces"),
        pytest.param("Score: 8 out of 10", TEN, 8.0, id="out of ten"),
        pytest.param("Score: 8 (out of 10)", TEN, 8.0, id="out of ten in brackets"),
        pytest.param("Score: (8/10)", TEN, 8.0, id="all in brackets"),
        pytest.param("Score (0-10): 8", TEN, 8.0, id="the scale before it"),
        pytest.param("Score (0\u201310): 8", TEN, 8.0, id="the scale with a dash"),
        pytest.param("Score [0 to 10] = 8", TEN, 8.0, id="the scale in square brackets"),
        pytest.param("Score (out of 10): 8", TEN, 8.0, id="the end of the scale before it"),
        pytest.param("Score out of 10: 8", TEN, 8.0, id="the end of the scale without brackets"),
        pytest.param("Score (-10-10): -3", SIGNED, -3.0, id="a scale with a sign"),
        pytest.param("Score [1-5]: 4", (1.0, 5.0), 4.0, id="the scale that was asked for"),
        pytest.param("Score [1-5]: 4", TEN, None, id="another scale"),
        pytest.param("Score: 4/5", TEN, None, id="of another scale"),
        pytest.param("Score: 1/2", SIGNED, None, id="a half"),
        pytest.param("Score: 80%", TEN, None, id="percent of what"),
        pytest.param("Score: 80 %", HUNDRED, 80.0, id="percent of a hundred"),
        pytest.param("Score: 11", TEN, None, id="above the scale"),
        pytest.param("Score (0-10)", TEN, None, id="a scale alone"),
        # several
        pytest.param("Score: 8-9", TEN, None, id="a range"),
        pytest.param("Score: 8 - 9", TEN, None, id="a range with spaces"),
        pytest.param("Score: 8 to 9", TEN, None, id="a range in letters"),
        pytest.param("Score: 7 or 8", TEN, None, id="one or the other"),
        pytest.param("Score: 8 \u2192 7", TEN, None, id="a correction"),
        pytest.param("Score: 8\u00b11", TEN, None, id="a tolerance"),
        pytest.param("Score: 8+", TEN, None, id="a bit more"),
        pytest.param("Score: ~8", TEN, None, id="about"),
        pytest.param("Score: 2*4", TEN, None, id="a product"),
        pytest.param(
            "It claims 'Score: 10', which is false.\nScore: 2", TEN, 2.0, id="the last line, not what is cited"
        ),
        pytest.param("> Score: 10\nThe answer grades itself.", TEN, None, id="a quotation alone"),
        pytest.param("Score: 3\nThe highest score: 10 was not reached.", TEN, 3.0, id="the highest score is none"),
        pytest.param("Score: 3\nScore: 8", TEN, 8.0, id="the last line is what was asked for"),
        pytest.param("Score: 3\nScore: 8\nGood luck.", TEN, None, id="two, and neither is the last line"),
        pytest.param("Score: 8\nReason: it has 3 parts.", TEN, 8.0, id="reasons behind it"),
        pytest.param("Clarity: 3\nFinal score: 7\n", TEN, 7.0, id="the final score"),
        pytest.param("Score: 3\nScore: 8-9", TEN, None, id="a last line that is unclear"),
        pytest.param("Score: 8. Three of 4 are met.", TEN, 8.0, id="numbers of another sentence"),
        pytest.param("Score: 8 because 2 parts are good", TEN, 8.0, id="numbers of a reason"),
        # prose
        pytest.param("Score of 8", TEN, 8.0, id="of"),
        pytest.param("Score is 8", TEN, 8.0, id="is"),
        pytest.param("It is right. The score is 8.", TEN, 8.0, id="in a sentence"),
        pytest.param("I would give this answer a score of 8.", TEN, 8.0, id="a judge that gives one"),
        pytest.param("The answer asks for a score of 10.", TEN, None, id="what the answer wants"),
        pytest.param("A score of 10 needs a proof. The score is 4.", TEN, 4.0, id="what would be needed"),
        pytest.param("The score is 4. My score is 5.", TEN, None, id="two in prose"),
        pytest.param("I give no score.", TEN, None, id="none"),
        pytest.param("The underscore 5 is odd.", TEN, None, id="a part of a longer one"),
        pytest.param("It scored 5 points.", TEN, None, id="a verb"),
        pytest.param("8", TEN, None, id="a number alone"),
        pytest.param("", TEN, None, id="nothing"),
        # markup
        pytest.param("**Score:** 8", TEN, 8.0, id="bold with its colon"),
        pytest.param("**Score**: **8**", TEN, 8.0, id="bold on both sides"),
        pytest.param("**Score: 8/10**", TEN, 8.0, id="all bold"),
        pytest.param("_Score_: 8", TEN, 8.0, id="italics"),
        pytest.param("`Score: 8`", TEN, 8.0, id="code"),
        pytest.param("### Score: 8", TEN, 8.0, id="a heading"),
        pytest.param("## Score\n\n8", TEN, 8.0, id="a number below its heading"),
        pytest.param("## Score (0-10)\n**8**", TEN, 8.0, id="a number below a heading with the scale"),
        pytest.param("## Score\n1. It is clear.", TEN, None, id="a list below a heading"),
        pytest.param("- Score: 8", TEN, 8.0, id="a bullet"),
        pytest.param("2. Score: 8", TEN, 8.0, id="an item"),
        pytest.param("\\boxed{Score: 8}", TEN, 8.0, id="boxed"),
        pytest.param("Score: \\boxed{8}", TEN, 8.0, id="a boxed number"),
        pytest.param("Score: $8$", TEN, 8.0, id="mathematics"),
        pytest.param("<b>Score</b>: 8", TEN, 8.0, id="HTML"),
        pytest.param("<score>8</score>", TEN, 8.0, id="a tag"),
        # thoughts
        pytest.param("<think>Score: 9</think>\nScore: 3", TEN, 3.0, id="thoughts before"),
        pytest.param("Score: 9, no.</think>Score: 3", TEN, 3.0, id="thoughts that the template has opened"),
        pytest.param("<think>Score: 9, or", TEN, None, id="thoughts that were cut off"),
        pytest.param("<think>a</think>\n<think>Score: 9</think>\nScore: 3", TEN, 3.0, id="thoughts twice"),
        pytest.param("The response has no <think> block.\nScore: 8", TEN, 8.0, id="thoughts are the subject"),
        pytest.param("It has no <think></think> block.\nScore: 8", TEN, 8.0, id="both tags are the subject"),
        pytest.param(
            '{"reason": "It reasons inside <think> tags and is right", "score": 9}', TEN, 9.0, id="a tag in a reason"
        ),
        pytest.param(
            '{"reason": "the answer comes after </think> as asked", "score": 3}', TEN, 3.0, id="its end in a reason"
        ),
        pytest.param(
            'Hm.</think>{"reason": "the answer comes after </think>", "score": 3}',
            TEN,
            3.0,
            id="JSON behind thoughts, with an end of thoughts in its reason",
        ),
        pytest.param('<think>{"score": 9}</think>\n{"score": 3}', TEN, 3.0, id="JSON in thoughts and behind them"),
        pytest.param('<think>{"score": 9}', TEN, None, id="JSON in thoughts that were cut off"),
        # JSON
        pytest.param('{"score": 8}', TEN, 8.0, id="JSON"),
        pytest.param('{"reason": "Score: 2", "score": 8.5}', TEN, 8.5, id="JSON with a reason"),
        pytest.param('```json\n{"Score": "8/10"}\n```', TEN, 8.0, id="JSON in a block, its number a text"),
        pytest.param('Here it is: {"score": -1e0}', SIGNED, -1.0, id="JSON behind prose"),
        pytest.param('{"score": true}', TEN, None, id="JSON with a truth value"),
        pytest.param('{"score": null}', TEN, None, id="JSON with null"),
        pytest.param('{"score": NaN}', TEN, None, id="JSON with what is no number"),
        pytest.param('{"score": 3, "score": 8}', TEN, None, id="JSON with two"),
        pytest.param('{"grade": 8}', TEN, None, id="JSON with none"),
        pytest.param('{"score": 80}', TEN, None, id="JSON beyond the scale"),
        pytest.param('{"score": 8, "reason": "it is', TEN, None, id="JSON that was cut off"),
        pytest.param('{"reason": "It says: Right. Score: 10', TEN, None, id="JSON that was cut off in a citation"),
        pytest.param('Here: {"reason": "He says it. Score: 10 is', TEN, None, id="JSON behind prose, cut off"),
        pytest.param('{"reason": "Bad. The score is 2 points off.", "score": 8}', TEN, 8.0, id="a score in a reason"),
        pytest.param(
            'Here: {"reason": "Bad. The score is 2.", "score": 8}', TEN, 8.0, id="a score in a reason, in prose"
        ),
        pytest.param('{"score": 8}\nThe answer is clear.', TEN, 8.0, id="prose behind JSON"),
        pytest.param('Thus:\n```json\n{\n  "score": 8\n}\n```\n', TEN, 8.0, id="JSON in a block behind prose"),
        pytest.param(
            'The response is {"name": "x", "score": 10}, which is wrong.\nScore: 2', TEN, 2.0, id="JSON that is cited"
        ),
        pytest.param('The response is {"score": 10}, which is wrong.', TEN, None, id="JSON that is cited alone"),
        pytest.param('{"score": 10} is what it says.', TEN, None, id="JSON that is cited at the beginning"),
        pytest.param('Score: 2\nIt says {"score": 10}', TEN, 2.0, id="JSON that is cited at the end"),
        pytest.param('It says {"score": 10} and {"score": 9}', TEN, None, id="JSON that is cited twice"),
        pytest.param("The code returns {}.\nScore: 8", TEN, 8.0, id="an empty object that is cited"),
        pytest.param('It prints {"a": 1}. The score is 8.', TEN, 8.0, id="an object that is cited"),
        pytest.param("Score: 2. It says <score>10</score>", TEN, None, id="a tag that is cited"),
        pytest.param('{"score": ' + "1" * 400 + "}", TEN, None, id="JSON with a number that no float has"),
        pytest.param('{"score": ' + "1" * 5000 + "}", TEN, None, id="JSON with a number of 5000 figures"),
        pytest.param('{"score": ' + "[" * 100_000, TEN, None, id="JSON that nests too deep"),
        pytest.param("So: " + '{"a":' * 100_000 + "\nScore: 8", TEN, 8.0, id="JSON that nests too deep, cited"),
        pytest.param("Score: 8.5th", TEN, None, id="an ordinal with a fraction"),
    ],
)
def test_a_reply_has_one_score_or_none(reply: str, scale: tuple[float, float], expected: float | None) -> None:
    found = read_score(reply, *scale)
    assert found == (None if expected is None else pytest.approx(expected, rel=1e-12))


MANY = 100_000


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("x" * MANY, id="one long line"),
        pytest.param("<think>" * MANY, id="beginnings of thoughts"),
        pytest.param("x</think>" * MANY, id="ends of thoughts"),
        pytest.param("<score>" * MANY, id="tags without ends"),
        pytest.param("Score: a" + "_" * MANY + "b", id="a line to fill in"),
        pytest.param("Score: 8 to" + " " * MANY + "x", id="many spaces"),
        pytest.param("# Score\n" + "1" * MANY + "x", id="many figures"),
        pytest.param("# Score\n" + "1," * MANY + "x", id="many numbers"),
        pytest.param("the " * MANY + "end", id="many articles"),
        pytest.param("\\boxed{" * MANY, id="boxes without ends"),
        pytest.param("{" * MANY, id="braces"),
        pytest.param("Score " * MANY, id="heads"),
        pytest.param("Score: 8 " * MANY, id="statements in a line"),
        pytest.param("Score: a.\n" * MANY, id="statements in lines"),
        pytest.param("**#- " * MANY, id="markup"),
    ],
)
def test_a_long_reply_is_read_in_steps_that_grow_with_its_length(reply: str) -> None:
    """Quadratic ones would take minutes."""
    assert read_score(reply, *TEN) in (None, 8.0)


@given(st.floats(-1e6, 1e6), st.sampled_from(["Score: {}", "**Score**: {}", "The score is {}.", '{{"score": {}}}']))
def test_every_number_on_the_scale_is_read_as_it_was_written(value: float, form: str) -> None:
    assert read_score(form.format(repr(value)), -1e6, 1e6) == pytest.approx(value, rel=1e-12)


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    for reply in (text, f"Score: {text}", json.dumps({"score": text})):
        found = read_score(reply, 0.0, 10.0)
        assert found is None or 0.0 <= found <= 10.0
