// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace poros {

/// slurm/templates/campaign.sh and gather.sh as they stood when this was built.
extern const char* const kCampaignTemplate;
extern const char* const kGatherTemplate;

}  // namespace poros
