# SPDX-License-Identifier: Apache-2.0
"""The Python side of Poros Bench: the tokenising step and the runners of the real libraries.

`python -m poros_peers.tokenise REQUEST.json` and `python -m poros_peers.<method> REQUEST.json`,
with this package's parent folder (src/peers) on PYTHONPATH.
"""
