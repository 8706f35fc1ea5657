"""How few kernels there are: what they compile to is checked by `python -m ci codegen`."""

import pytest

from msda import kernels
from msda.specialisations import dtype_cells, specialisations
from msda.tests.calls import DEVICE, make_call


def test_specialisations_are_few():
    assert len(dtype_cells()) == 10
    names = [s.name for s in specialisations()]
    assert len(set(names)) == len(names)
    assert len([s for s in specialisations() if s.kernel == "forward"]) == 10 * 3
    assert len([s for s in specialisations() if s.kernel == "backward" and s.accumulate == "float32"]) == 10 * 3


@pytest.mark.skipif(DEVICE != "cuda", reason="counts what a GPU launch compiles")
def test_random_shapes_compile_once():
    def compiled() -> int:
        return sum(len(cache[0]) for cache in kernels.backward.device_caches.values())

    make_call([(3, 5)], channels=8).run()
    before = compiled()
    for queries, heads, points, channels in ((1, 1, 1, 16), (17, 3, 4, 32), (16, 16, 16, 24)):
        make_call([(1, 1), (16, 2)], queries=queries, heads=heads, points=points, channels=channels).run()
    assert compiled() == before
