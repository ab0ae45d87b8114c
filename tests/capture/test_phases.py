"""Phases and FLOPs of programs that nobody changed, with the real torch: which ranges there are, and that nothing of the program changes."""

import copy
import gc
import importlib
import importlib.util
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from nsyspipe.capture import phases, ranges
from nsyspipe.capture.attach import ATTACH_STEPS, attach
from nsyspipe.capture.flop_count import COUNT_FLOPS
from nsyspipe.capture.phases import NO_PHASES
from nsyspipe.capture.status import facts
from tests.late_module import LateModule

torch: Any = LateModule("torch")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("with_torch")]

BATCH, N_IN, N_OUT = 4, 8, 16
ALL_PHASES = ["data", "forward", "backward", "optimizer"]


@pytest.fixture(scope="module")
def with_torch():
    pytest.importorskip("torch")


class Recorder:
    """Where ranges go: which there are in each step, as a text with brackets."""

    def __init__(self):
        self.steps = {}
        self.current = None
        self.depth = 0

    def push(self, name):
        self.depth += 1
        self.note(f"{name}(")

    def pop(self):
        self.depth -= 1
        assert self.depth >= 0
        self.note(")")

    def start(self, text):
        if text.startswith("step "):
            assert self.depth == 0
            self.current = int(text.removeprefix("step "))
        return text

    def end(self, text):
        if text.startswith("step "):
            assert self.depth == 0
            self.current = None

    def note(self, text):
        self.steps.setdefault(self.current, []).append(text)

    def of(self, step):
        return "".join(self.steps.get(step, []))


@pytest.fixture
def attached(monkeypatch):
    """Attach to the optimizers of this process, until the test ends."""
    gc.collect()
    recorder = Recorder()
    backend = ranges.Backend(recorder.push, recorder.pop, recorder.start, recorder.end)
    monkeypatch.setattr(phases, "backend", lambda: backend)
    monkeypatch.setattr(ranges, "backend", lambda: backend)
    before = copy.deepcopy(vars(facts))
    vars(facts).update(vars(type(facts)()))
    handles = []

    def registering(function):
        return lambda hook: handles.append(function(hook))

    optimizers = importlib.import_module("torch.optim.optimizer")
    names = ("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook")
    fake = SimpleNamespace(**{name: registering(getattr(optimizers, name)) for name in names})

    def begin(steps="6:8", **variables):
        monkeypatch.setenv(ATTACH_STEPS, steps)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        attach(fake)
        return recorder

    yield begin
    for handle in handles:
        handle.remove()
    ranges.stop_capture()
    vars(facts).update(before)
    # Whatever a test has done, nothing of ours is left.
    assert phases._marking.thread is None
    assert phases._marking.open_ranges == []


def a_model():
    torch.manual_seed(1)
    layers = torch.nn.Linear(N_IN, N_OUT), torch.nn.Dropout(0.5), torch.nn.Linear(N_OUT, 1)
    return torch.nn.Sequential(*layers)


def a_loader(n_items=100):
    samples = [torch.full((N_IN,), float(number)) / n_items for number in range(n_items)]
    return torch.utils.data.DataLoader(samples, batch_size=BATCH)


def batches(n=9):
    loader = iter(a_loader(n * BATCH))
    return (next(loader) for _ in range(n))


def train(model, n_steps=9, n_passes=1, loader=None, call=None):
    """Train with a plain loop, and return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    items = iter(loader or a_loader(n_steps * n_passes * BATCH))
    for _ in range(n_steps):
        for _ in range(n_passes):
            loss = (call or model)(next(items)).square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def test_each_step_has_its_phases_in_order(attached):
    recorder = attached()
    train(a_model())
    assert recorder.of(6) == recorder.of(7) == "data()forward()backward()optimizer()"
    assert facts.phase_names == ALL_PHASES
    assert facts.n_captured_steps == 2


def test_each_pass_of_an_accumulation_has_its_ranges(attached):
    recorder = attached()
    train(a_model(), n_passes=2)
    assert recorder.of(6) == "data()forward()backward()" * 2 + "optimizer()"


def test_no_range_is_made_outside_the_steps_around_the_capture(attached):
    recorder = attached("7:9")
    train(a_model(), 12)
    assert sorted(recorder.steps) == [3, 4, 5, 6, 7, 8]


def test_phases_are_marked_from_the_first_step_that_can_be_captured(attached):
    recorder = attached("1:3")
    train(a_model(), 4)
    assert recorder.of(1) == recorder.of(2) == "data()forward()backward()optimizer()"


def test_phases_can_be_turned_off(attached):
    recorder = attached(**{NO_PHASES: "1"})
    train(a_model())
    assert recorder.steps == {}
    assert facts.n_captured_steps == 2


def test_phases_that_the_program_marks_are_not_marked_twice(attached):
    recorder = attached()
    facts.saw("forward")
    train(a_model())
    assert recorder.of(6) == "data()backward()optimizer()"


def test_several_models_and_optimizers_are_all_marked(attached):
    recorder = attached()
    first = a_model()
    second = torch.nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (first, second)]
    for batch in batches():
        second(first(batch)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    expected = "optimizer()data()forward()forward()backward()optimizer()"
    # The second optimizer steps after the first one has ended the step.
    assert recorder.of(6) == expected


def test_a_model_in_a_model_is_part_of_its_forward(attached):
    recorder = attached()
    outer = torch.nn.Module()
    outer.inner = a_model()
    # Not registered, so it looks like a model of its own.
    hidden = [torch.nn.Linear(1, 1)]
    outer.forward = lambda batch: hidden[0](outer.inner(batch))
    train(outer)
    assert recorder.of(6) == "data()forward()backward()optimizer()"


def test_the_parts_of_a_module_that_is_not_called_are_found(attached):
    recorder = attached()
    whole = torch.nn.Module()
    whole.parts = torch.nn.ModuleDict({"net": a_model()})
    train(whole, call=whole.parts["net"])
    assert recorder.of(6) == "data()forward()backward()optimizer()"


def test_a_forward_that_is_computed_again_belongs_to_backward(attached):
    recorder = attached()
    body = a_model()
    head = torch.nn.Linear(1, 1)
    parts = torch.nn.ModuleList([body, head])

    def call(batch):
        batch = batch.requires_grad_()
        return head(torch.utils.checkpoint.checkpoint(body, batch, use_reentrant=False))

    train(parts, call=call)
    assert recorder.of(6) == "data()forward()forward()backward()optimizer()"


def test_a_closure_lies_in_the_range_of_its_optimizer(attached):
    recorder = attached()
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for batch in batches():

        def closure(batch=batch):
            loss = model(batch).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert recorder.of(6) == "data()optimizer(forward()backward())"


class FailingOnce:
    """A hook that raises the next time that it is called after it was armed."""

    is_armed = False

    def __call__(self, *_arguments):
        if self.is_armed:
            self.is_armed = False
            raise KeyError("of the program")


class FailingSamples:
    """A data set."""

    def __init__(self, fail):
        self.fail = fail

    def __len__(self):
        return BATCH

    def __getitem__(self, _index):
        self.fail()
        return torch.ones(N_IN)


# Where the program raises, and what there is of the step before it tries again.
ATTEMPTS = {
    "data": "data()",
    "forward": "data()forward()",
    "backward": "data()forward()backward()",
    # Nothing tells that an update has failed, so its range ends when the next batch is loaded.
    "optimizer": "data()forward()backward()optimizer()",
}


@pytest.mark.parametrize(("place", "attempt"), ATTEMPTS.items())
def test_a_range_is_closed_if_the_program_catches_an_exception(attached, place, attempt):
    recorder = attached()
    fail = FailingOnce()
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = FailingSamples(fail if place == "data" else int)
    if place == "forward":
        model[0].register_forward_pre_hook(fail)

    def try_step():
        loss = model(next(iter(torch.utils.data.DataLoader(samples, batch_size=BATCH)))).sum()
        if place == "backward":
            loss.register_hook(fail)
        loss.backward()
        optimizer.step(fail if place == "optimizer" else None)

    for step in range(9):
        fail.is_armed = step == 6
        try:
            try_step()
        except KeyError:
            try_step()
    whole_step = "data()forward()backward()optimizer()"
    assert recorder.of(6) == attempt + whole_step
    assert recorder.of(7) == whole_step


def test_all_hooks_are_gone_after_the_capture(attached):
    iterators = torch.utils.data.dataloader._BaseDataLoaderIter
    backward = torch.autograd.backward
    following = iterators.__next__
    attached()
    model = a_model()
    seen = []
    train(model, call=lambda batch: (seen.append(len(model._forward_hooks)), model(batch))[1])
    assert (seen[5], seen[8]) == (1, 0)
    assert torch.autograd.backward is backward
    assert iterators.__next__ is following
    assert not model._forward_pre_hooks


def test_a_model_that_is_copied_meanwhile_works(attached):
    recorder = attached()
    model = a_model()
    copies = []

    def call(batch):
        copies.append(copy.deepcopy(model))
        return model(batch)

    train(model, call=call)
    assert recorder.of(7) == "data()forward()backward()optimizer()"
    assert [made(torch.ones(1, N_IN)).shape for made in copies] == [(1, 1)] * 9


@pytest.mark.parametrize("variables", [{}, {COUNT_FLOPS: "1"}, {NO_PHASES: "1"}])
def test_losses_and_weights_are_the_same_bits(attached, variables):
    plain = a_model()
    expected = train(plain, n_passes=2)
    attached(**variables)
    model = a_model()
    assert train(model, n_passes=2) == expected
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(before, after) for before, after in pairs)


def own_module():
    """Return a module of the program. Those of torch are not compiled in place alone."""

    class Own(torch.nn.Module):  # type: ignore[misc]
        def __init__(self):
            super().__init__()
            self.layer = a_model()

        def forward(self, batch):
            return self.layer(batch) + 1

    return Own()


class Graphs:
    """A backend of torch.compile that counts graphs."""

    def __init__(self):
        self.n = 0

    def __call__(self, graph, _inputs):
        self.n += 1
        return graph.forward


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    yield Graphs()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_a_compiled_model_is_not_compiled_again_and_has_its_forward(attached, graphs):
    recorder = attached()
    compiled = torch.compile(a_model(), backend=graphs, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(compiled)
    assert graphs.n == 1
    assert recorder.of(6) == "data()forward()backward()optimizer()"


def test_parts_that_are_compiled_in_place_stay_in_one_graph(attached, graphs):
    recorder = attached()
    model = torch.nn.Sequential(own_module(), torch.nn.Linear(1, 1))
    model[0].compile(backend=graphs, fullgraph=True)
    train(model)
    assert graphs.n == 1
    assert recorder.of(6) == "data()forward()backward()optimizer()"


def test_a_model_that_is_compiled_in_place_has_no_forward(attached, graphs):
    recorder = attached()
    model = own_module()
    model.compile(backend=graphs, fullgraph=True)
    train(model)
    assert graphs.n == 1
    assert recorder.of(6) == "data()backward()optimizer()"


def test_a_compiled_function_stays_in_one_graph_when_it_is_compiled_meanwhile(attached, graphs):
    recorder = attached()
    model = a_model()

    def double(batch):
        return model(batch) * 2

    call = torch.compile(double, backend=graphs, fullgraph=True)
    n_seen = []

    def compile_late(batch):
        n_seen.append(graphs.n)
        return call(batch) if len(n_seen) > 6 else model(batch)

    # The last step is the last one that is captured.
    train(model, 8, call=compile_late)
    assert graphs.n == 1
    assert recorder.of(7) == "data()backward()optimizer()"


def flops_of(n_passes):
    # A layer of A inputs and B outputs needs 2 A B for each sample, and the same for the gradient
    # of its weights. The second layer also needs the gradient of its inputs.
    n_first = 2 * BATCH * N_IN * N_OUT
    n_second = 2 * BATCH * N_OUT
    return n_passes * (2 * n_first + 3 * n_second)


@pytest.mark.parametrize("n_passes", [1, 3])
def test_flops_of_a_step_are_those_of_all_its_passes(attached, n_passes):
    attached(**{COUNT_FLOPS: "1"})
    train(a_model(), n_passes=n_passes)
    assert facts.flops_per_step == flops_of(n_passes)


def test_flops_are_not_counted_unless_asked_for(attached):
    attached()
    train(a_model())
    assert facts.flops_per_step is None


def test_flops_are_counted_in_the_step_before_the_first_possible_capture(attached):
    attached("2:3", **{COUNT_FLOPS: "1"})
    train(a_model())
    assert facts.flops_per_step == flops_of(1)


def test_flops_of_compiled_code_are_unknown_and_it_is_said_once(attached, graphs, capsys):
    attached(**{COUNT_FLOPS: "1"})
    train(torch.compile(a_model(), backend=graphs))
    assert facts.flops_per_step is None
    assert capsys.readouterr().err.count("torch.compile") == 1
    assert graphs.n == 1
    assert facts.n_captured_steps == 2
