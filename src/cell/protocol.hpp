// SPDX-License-Identifier: Apache-2.0
// How `poros` and a cell process speak: a request file in, an event pipe and a result file out.
// Nothing is parsed from stdout. poros-cell (C++) and the runners in src/peers (Python) keep to it.
//
//   poros-cell run REQUEST.json        python -m poros_peers.<method> REQUEST.json
//
// Request (JSON):
//   v             1
//   purpose       "timed" | "parity"     parity: untimed, streams a hash of every tensor a step
//   cell          CellSpec, complete (spec/cell_spec.hpp)
//   cell_key      64 hex
//   pass, attempt integers from 0 and 1
//   model_dir     checkpoint folder (config.json, *.safetensors, tokenizer.json)
//   tokens_path   inputs/<sha256>.tokens      (model/token_file.hpp)
//   adapter_dir   inputs/<sha256>.adapter     initial adapter in PEFT format
//   cache_dir     NF4 cache root
//   result_path   where the PassRecord must appear, by rename
//   threads       CPU threads to use; part of the numerical plan on the CPU
//   dump          optional {"step": n, "dir": path}: write that step's tensors as safetensors
//   max_steps     optional: stop after that many steps (parity's second run)
//
// Event pipe: environment variable POROS_EVENT_FD names a writable descriptor. One JSON object a
// line, each at most 4096 bytes (so that a write to the pipe is atomic):
//   {"event":"phase","phase":"import|load|quantise|warmup|train|finish"}
//   {"event":"step","step":3,"steps":25,"loss":2.1,"s_per_step":0.5,"memory_mb":812.0}
//   {"event":"heartbeat"}          at least every 5 s in phases without steps
//
// Result: PassRecord (receipts/pass_record.hpp) as JSON. Exit code 0 with a result: done. Exit 0
// without a result, or a result with another exit code: the attempt failed. Exit 3: the arm can't
// run here and the result says status "skipped" with its reason.
#pragma once

namespace poros {

inline constexpr int kProtocolVersion = 1;
inline constexpr const char* kEventFdVariable = "POROS_EVENT_FD";
inline constexpr const char* kCellTagVariable = "POROS_CELL_TAG";  // marks every process of a cell
inline constexpr int kCellSkipped = 3;

}  // namespace poros
