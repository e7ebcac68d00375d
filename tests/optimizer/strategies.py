"""Random fleets for property tests."""

from hypothesis import strategies as st

from optimizer import Engine, Key, Problem, Profile

rates = st.floats(0.01, 500.0)


@st.composite
def profiles(draw) -> Profile:
    """Parametric or measured, from flat to steep."""
    capacity = draw(st.floats(1.0, 50.0))
    if draw(st.booleans()):
        loads = [0.0, capacity / 3, capacity * 2 / 3, capacity]
        points = [(x, draw(st.floats(10, 500)), draw(st.floats(1, 50))) for x in loads]
        return Profile.from_table(points)
    return Profile.parametric(
        capacity_rps=capacity,
        lambda_max_rps=capacity * draw(st.floats(1.05, 3.0)),
        t0_ms=draw(st.sampled_from([0.0, 10.0, 30.0])),
        ttft_base_ms=draw(st.floats(10, 300)),
        ttft_knee_rps=capacity * draw(st.floats(0, 1)),
        ttft_slope=draw(st.sampled_from([0.0, 50.0])),
        ttft_queue_ms=draw(st.sampled_from([0.0, 80.0])),
    )


@st.composite
def problems(draw, previous: bool = True) -> Problem:
    """Up to 4 front-ends, 5 engines, 2 classes; some pairs forbidden, some engines without replicas."""
    engine_names = [f"e{j}" for j in range(draw(st.integers(1, 5)))]
    frontends = [f"f{i}" for i in range(draw(st.integers(1, 4)))]
    keys = [f"meta-llama/Llama-3.1-8B/c{k}" for k in range(draw(st.integers(1, 2)))]
    engines = {
        name: Engine(
            draw(profiles()),
            ready_replicas=draw(st.sampled_from([0, 1, 1, 3, 10])),
            penalty=draw(st.sampled_from([1.0, 0.5])),
            max_utilization=draw(st.sampled_from([0.7, 0.9])),
            max_share=draw(st.sampled_from([1.0, 1.0, 0.6])),
        )
        for name in engine_names
    }
    subsets = st.frozensets(st.sampled_from(engine_names))
    rows = [(f, k) for f in frontends for k in keys]
    shares = st.dictionaries(st.sampled_from(engine_names), st.floats(0.1, 1), min_size=1)

    def normalised(weights):
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    before = {}
    if previous and draw(st.booleans()):
        for f, k in rows:
            before.setdefault(f, {})[k] = normalised(draw(shares))
    return Problem(
        demand_rps={f: {k: draw(st.sampled_from([0.0, 1.0, 10.0, 40.0])) for k in keys} for f in frontends},
        network_ms={f: {e: draw(st.floats(0, 250)) for e in engine_names} for f in frontends},
        engines=engines,
        keys={
            k: Key(
                priority=draw(st.integers(0, 3)),
                output_tokens=draw(st.sampled_from([0.0, 100.0, 400.0])),
                work={e: draw(st.sampled_from([0.5, 1.0, 2.0])) for e in engine_names},
                kappa=draw(st.sampled_from([0.0, 0.05])),
                has_session=draw(st.booleans()),
            )
            for k in keys
        },
        eligible={row: draw(subsets) for row in rows},
        previous_shares=before or None,
    )
