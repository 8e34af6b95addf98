// The state that XLA keeps between the two handlers of an operator.

#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "cpu/handler.h"
#include "cpu/site.h"
#include "native/engine.h"

namespace decompops::native {

// One operator of one compiled program. The ranks of its plan are the devices of all groups, one group after the other.
struct Site : SiteFields {
  static constexpr std::string_view name = "decompops_native_site";
  static inline xla::ffi::TypeId id = {};
  static xla::ffi::TypeInfo info;

  std::optional<Ensemble> ensemble;

  void complete() {}
  std::string speaker() const { return "decompops: "; }
  void leave() {}

  // The number of devices in one group.
  int places() const {
    int places = 1;
    for (Index size : plan.mesh) places *= static_cast<int>(size);
    return places;
  }

  // The place of a device among the devices of all groups.
  int index_of(int device) const {
    const auto found = std::find(plan.ranks.begin(), plan.ranks.end(), device);
    if (found == plan.ranks.end()) throw Failure("device " + std::to_string(device) + " is not in the mesh");
    return static_cast<int>(found - plan.ranks.begin());
  }

  // The meeting of the devices of a group.
  Meeting meeting_of(int group) const {
    const int size = places();
    const auto first = plan.ranks.begin() + group * size;
    Meeting meeting;
    meeting.label = plan.label;
    meeting.devices.assign(first, first + size);
    meeting.arrivals.resize(size);
    return meeting;
  }

  // The ensemble is the same for all groups, because each group identifies its devices by their place.
  const Ensemble& linked(const Arguments& arguments) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!ensemble) {
      std::vector<Program> programs;
      for (int place = 0; place < places(); ++place) {
        programs.push_back(compile(plan, arguments.batch, arguments.element, arguments.number, place));
      }
      ensemble = link(std::move(programs));
    }
    return *ensemble;
  }
};

inline xla::ffi::TypeInfo Site::info = xla::ffi::MakeTypeInfo<Site>();

}  // namespace decompops::native
