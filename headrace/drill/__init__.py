"""Fault drills: a real fleet is hurt on purpose, and what its users saw is held against targets.

| module | holds |
|---|---|
| `drill` | what a drill is, in plain values |
| `evidence`, `figures`, `judge` | what was seen, numbers from it, and the verdict: pure |
| `policy` | the demo's policy, with shorter time constants and the changes that single drills need |
| `stage`, `hands`, `watch` | the shell: fleet and load, what can be done to them, what is looked at |
| `losses`, `slowness`, `silence`, `control`, `demand`, `retries`, `sessions` | the drills |
| `catalogue`, `table` | all of them by name; how results are shown |
"""
