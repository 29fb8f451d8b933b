"""Running compiled steps: memory, state, worker threads, artifacts. Needs numpy only; knows no compiler."""
