"""All evals are answered from the JSON alone, and their answers are those that are worked out."""

import json
from collections import Counter
from contextlib import chdir

import pytest
from typer.testing import CliRunner

from nsyspipe.cli.app import app
from nsyspipe.report.skill.fields import without_choice
from nsyspipe.report.skill.questions import QUESTIONS
from tests.evals import oracle
from tests.evals.declared import BY_READER, EVALS
from tests.evals.json_values import values_at

FIELDS = [(question.command, without_choice(question.path)) for question in QUESTIONS]
MIN_EVALS, MIN_OF_READER, MIN_BAITS = 40, 20, 10
BAITS = {"wrong denominator", "one step", "missing rank", "clock error", "other communicator"}


def test_there_are_enough_evals():
    assert len(BY_READER) >= MIN_OF_READER
    assert len(EVALS) >= MIN_EVALS


def test_every_kind_of_bait_is_there():
    baits = Counter(each.bait for each in EVALS if each.bait)
    assert baits.keys() >= BAITS
    assert sum(baits[kind] for kind in BAITS) >= MIN_BAITS


def test_evals_have_ids_of_their_own():
    assert len({each.id for each in EVALS}) == len(EVALS)


@pytest.mark.parametrize("each", EVALS, ids=lambda each: each.id)
def test_a_bait_is_not_the_answer(each):
    assert bool(each.bait) == (each.bait_answer is not None)
    assert each.bait_answer is None or each.bait_answer != each.answer


@pytest.mark.parametrize("each", EVALS, ids=lambda each: each.id)
def test_the_skill_has_the_field_of_an_eval(each):
    """The field, or the object that it is in, is in the closed list of questions."""
    path = without_choice(each.path)
    fields = [field for command, field in FIELDS if command == each.command[0]]
    assert any(path == field or path.startswith(f"{field}.") for field in fields), path


@pytest.fixture(scope="module")
def answered(real, programs):
    """Return a function that runs a command where the captures are, once: the document that it prints."""
    documents = {}

    def answer(command):
        if command not in documents:
            folder = programs if "/" in command[1] else real
            with chdir(folder):
                done = CliRunner().invoke(app, [*command, "--json", "-"])
            assert done.exit_code in {0, 4}, done.stderr
            documents[command] = json.loads(done.stdout)
        return documents[command]

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("each", EVALS, ids=lambda each: each.id)
def test_an_eval_is_answered_from_the_json_alone(answered, each):
    values = values_at(answered(each.command), each.path)
    value = values[0] if values else None
    assert len(values) <= 1
    if not each.is_number:
        assert value == each.expected_value
    assert each.answer_of(value) == each.answer


SHM = "ddp-4gpu-shm_*.sqlite"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "path"),
    [
        (("analyze", "ddp-4gpu_0.sqlite"), "problems[code=ranks-missing].fix"),
        (("analyze", "2gpu-pp_*.sqlite"), "problems[code=clock-error-unknown].fix"),
        (("analyze", "2gpu-graph_[0-9].sqlite"), "problems[code=comm-in-graphs].fix"),
        (("analyze", SHM), "problems[code=few-steps].fix"),
        (("whatif", "4gpu-tpddp_[0-9].sqlite", "--bucket-mb", "50"), "scenarios[0].refused"),
        (("diff", SHM, "ddp-4gpu-shm-bucket100_*.sqlite"), "metrics[metric=step_time].why"),
    ],
)
def test_what_cannot_be_said_has_its_reason(answered, command, path):
    texts = values_at(answered(command), path)
    assert texts
    assert all(texts)


def by_id(name):
    (each,) = [each for each in EVALS if each.id == name]
    return each


def expected(name):
    return pytest.approx(by_id(name).answer, abs=0.5 * 10 ** -by_id(name).digits)


def reports(real, name):
    return sorted(real.glob(f"{name}_[0-9].sqlite"))


@pytest.mark.slow
def test_the_step_time_is_worked_out_from_the_tables(real):
    assert oracle.step_time_ns(reports(real, "ddp-4gpu-shm"), "Batch") / 1e6 == expected("p03")


@pytest.mark.slow
def test_the_length_of_one_step_is_worked_out_from_the_tables(real):
    windows = oracle.windows(reports(real, "ddp-4gpu-shm")[0], "Batch")
    lengths = {window.name: window.length_ns for window in windows}
    assert lengths["Batch 10"] / 1e6 == expected("p29")


@pytest.mark.slow
def test_the_share_of_exposed_communication_is_worked_out_from_the_tables(real):
    assert 100 * oracle.exposed_share(reports(real, "ddp-4gpu-shm"), "Batch") == expected("p02")


@pytest.mark.slow
def test_the_number_of_collectives_is_worked_out_from_the_tables(real):
    for report in reports(real, "2gpu-moe"):
        n_calls = oracle.calls_per_step(report, "step", "ncclDevKernel_SendRecv%")
        assert n_calls == by_id("p12").answer


@pytest.mark.slow
def test_a_change_is_worked_out_from_the_tables(real):
    runs = [reports(real, name) for name in ("2gpu-gpt-one-shm", "2gpu-gpt-b25-shm")]
    assert oracle.change_pct(*runs, "step") == expected("p15")
    assert oracle.are_separate(*runs, "step")
