// SPDX-License-Identifier: Apache-2.0
#include "campaign/predict.hpp"

namespace poros {

CellPrediction predict(const CellSpec& cell) {
  CellPrediction prediction;
  prediction.why = "nothing is known of " + cell.model.model_id;
  return prediction;
}

}  // namespace poros
