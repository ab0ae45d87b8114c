"""FLOPs that torch counts are those of a model by hand, and pass through options unchanged."""

import pytest

from nsyspipe.model.work import AskedWork

N_ROWS = 32
N_INPUTS = 64
N_OUTPUTS = 48


@pytest.mark.slow
def test_a_linear_layer_has_three_products_in_a_step():
    """Forward, the gradient of the weights, and that of the input: 2 n m k FLOPs each."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - after torch

    layer = torch.nn.Linear(N_INPUTS, N_OUTPUTS)
    rows = torch.randn(N_ROWS, N_INPUTS, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(rows).sum().backward()
    by_hand = 3 * 2 * N_ROWS * N_INPUTS * N_OUTPUTS
    assert counter.get_total_flops() == by_hand
    assert AskedWork.of_options({"flops_per_step": counter.get_total_flops()}).flops == by_hand
