#include "stamp.h"

// A hash of the sources that this library was built from.
extern "C" __attribute__((visibility("default"))) const char* decompops_stamp() { return DECOMPOPS_STAMP; }
