// What the handlers of both libraries for CPUs share. Each library defines a class `Site`: one operator of one compiled
// program, which is the state that XLA keeps between the two handlers.

#pragma once

#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>

#include "cpu/arguments.h"
#include "cpu/fft.h"
#include "xla/ffi/api/ffi.h"

namespace decompops {

// The fields of a `Site` in both libraries. A `Site` inherits them, and has these functions:
// - `complete` gets the attributes that only its library has;
// - `speaker` returns the beginning of all errors;
// - `leave` is called when an execution ends.
struct SiteFields {
  Plan plan;
  Planning planning;
  int threads;
  bool back;  // in exchanges of rows: as in `RowCounts`
  std::mutex mutex;
};

// The attributes that the first handler gets in both libraries. `ranks` is the name of the attribute for the ranks.
inline auto bind_site(const char* ranks) {
  using Numbers = xla::ffi::Span<const std::int64_t>;
  return xla::ffi::Ffi::BindInstantiate()
      .Attr<Numbers>("numbers")
      .Attr<Numbers>("mesh")
      .Attr<Numbers>(ranks)
      .Attr<double>("scale")
      .Attr<std::string_view>("label")
      .Attr<std::int64_t>("planning")
      .Attr<std::int64_t>("threads")
      .Attr<bool>("back");
}

// The first handler: makes a site. `more` are the attributes that only this library has.
template <class Site, class... More>
xla::ffi::ErrorOr<std::unique_ptr<Site>> instantiate(xla::ffi::Span<const std::int64_t> numbers,
                                                     xla::ffi::Span<const std::int64_t> mesh,
                                                     xla::ffi::Span<const std::int64_t> ranks, double scale,
                                                     std::string_view label, std::int64_t planning,
                                                     std::int64_t threads, bool back, More... more) {
  try {
    auto site = std::make_unique<Site>();
    site->plan = plan_of(numbers, mesh, ranks, scale, label);
    site->planning = static_cast<Planning>(planning);
    site->threads = static_cast<int>(threads);
    site->back = back;
    site->complete(more...);
    return site;
  } catch (const std::exception& error) {
    return xla::ffi::Unexpected(xla::ffi::Error::Internal(std::string("decompops: ") + error.what()));
  }
}

// Begins an execution, and returns what XLA waits for. `begin` gets a function to call when the execution has ended,
// with the text of the error. This function does not throw.
template <class Site, class Begin>
xla::ffi::Future begin_execution(Site* site, const Begin& begin) {
  using xla::ffi::Error;
  xla::ffi::Promise promise;
  xla::ffi::Future future(promise);
  auto done = [promise, site](const std::string& error) mutable {
    site->leave();
    if (error.empty()) return promise.SetAvailable();
    try {
      promise.SetError(Error::Internal(site->speaker() + site->plan.label + ": " + error));
    } catch (const std::bad_alloc&) {
      promise.SetError(Error::Internal("no memory"));
    }
  };
  try {
    begin(done);
  } catch (const std::exception& error) {
    std::string text = "no memory";
    try {
      text = error.what();
    } catch (const std::bad_alloc&) {
    }
    done(text);
  }
  return future;
}

}  // namespace decompops
