#include "stamp.h"

#include <cstdint>

// The stamp of the sources that this library was built from.
extern "C" __attribute__((visibility("default"))) std::int64_t decompops_stamp() { return DECOMPOPS_STAMP; }
