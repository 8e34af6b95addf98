// Tests of plans that pad and crop axes between transforms and exchanges: the devices are in one process here. Results
// are compared with those of the simplest code, which stores every zero and every cell that is dropped. Half of the plans
// send narrower numbers.

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <new>
#include <utility>

#include "cpu/steps.h"
#include "native/engine.h"
#include "tests/boxes.h"
#include "tests/expect.h"
#include "tests/transforms.h"

using namespace decompops;
using native::Engine;

namespace {

// Memory that is aligned as XLA's buffers are, so that FFTW may use lines where they lie.
template <class T>
struct Aligned {
  using value_type = T;
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlignment)); }
  void deallocate(T* values, std::size_t) { ::operator delete(values, kAlignment); }
  bool operator==(const Aligned&) const { return true; }
  bool operator!=(const Aligned&) const { return false; }

 private:
  static constexpr std::align_val_t kAlignment{64};
};
using Numbers = std::vector<double, Aligned<double>>;

// A whole field. Its first axis is a batch.
struct Whole {
  explicit Whole(const Strides& counts)
      : counts(counts), cells(Region{Strides::filled(counts.size()), counts}.volume()) {}
  Strides stride() const { return dense(kInput, 0, {Strides::filled(counts.size()), counts}).stride; }
  const Cell& operator[](const Strides& cell) const { return cells[at(cell, stride())]; }

  Strides counts;
  std::vector<Cell> cells;
};

// Returns a field with `count` cells along `axis`. Its cell k there is `value(line, k)`, where `line(n)` is cell n of
// the same line of `field`.
template <class Value>
Whole along(const Whole& field, int axis, Index count, const Value& value) {
  Strides counts = field.counts;
  counts[axis] = count;
  Whole result(counts);
  const Strides stride = result.stride();
  for_all(counts, [&](Strides cell) {
    Cell& to = result.cells[at(cell, stride)];
    const Index k = cell[axis];
    to = value([&](Index n) { return cell[axis] = n, field[cell]; }, k);
  });
  return result;
}

Whole resized(const Whole& field, int axis, Index count) {
  const Index before = field.counts[axis];
  return along(field, axis, count, [before](const auto& line, Index k) { return k < before ? line(k) : 0; });
}

Whole transformed(const Whole& field, int axis, const Transform& transform, Index length) {
  using Kind = Transform::Kind;
  const Index before = field.counts[axis], after = transform.kind == Kind::r2c ? length / 2 + 1 : length;
  return along(field, axis, after, [&](const auto& line, Index k) {
    Cell sum = 0;
    for (Index n = 0; n < before; ++n) sum += line(n) * weight(transform, n, k, length);
    return transform.kind == Kind::c2r ? Cell(sum.real()) : sum;
  });
}

// A plan under construction, and its result. The devices shard one axis, or none if there is only one device.
struct Steps {
  Steps(int ndim, int devices) : expected(counts_of(ndim)), is_complex(random(0, 1) == 1) {
    plan.source = {{}, Strides::filled(ndim, 1), PerAxis<int>::filled(ndim, -1), {}, {}};
    for (int axis = 0; axis < ndim; ++axis) {
      plan.source.lengths.push_back(expected.counts[axis + 1]);
      plan.source.halo.push_back({0, 0});
    }
    plan.source.order = random_order();
    if (devices > 1) shard(plan.source, static_cast<int>(random(0, ndim - 1)), devices);
    for (Cell& cell : expected.cells) cell = {random(-9, 9) / 9.0, is_complex ? random(-9, 9) / 9.0 : 0};
    plan.target = plan.source;
    plan.scale = 1;
    plan.mesh = {devices};
    plan.label = "resizes";
  }

  // Pads or crops some axes.
  void resize() {
    Blocks after = plan.target;
    const std::vector<int> axes = some_axes();
    for (int axis : axes) {
      after.lengths[axis] = random(2, 12);
      expected = resized(expected, axis + 1, after.lengths[axis]);
    }
    if (!axes.empty()) add(Stage::Kind::resize, after, axes);
  }

  void transform() {
    if (random(0, 2) == 0) return transform_waves();
    using Kind = Transform::Kind;
    Blocks after = plan.target;
    const std::vector<int> axes = some_axes();
    if (axes.empty()) return;
    const Kind kind = !is_complex ? Kind::r2c : random(0, 2) == 0 ? Kind::c2r : Kind::c2c;
    const Transform last{kind, random(0, 1) ? 1 : -1, random(0, 1) == 1}, other{Kind::c2c, last.sign};
    const int halved = axes.back();
    Index& length = after.lengths[halved];
    const Index points = kind == Kind::c2r ? 2 * length - random(1, 2) : length;
    if (kind == Kind::r2c) expected = transformed(expected, halved + 1, last, points);
    for (int axis : axes) {
      if (axis != halved) expected = transformed(expected, axis + 1, other, after.lengths[axis]);
    }
    if (kind != Kind::r2c) expected = transformed(expected, halved + 1, last, points);
    length = kind == Kind::r2c ? points / 2 + 1 : points;
    is_complex = kind != Kind::c2r;
    if (plan.scale == 1) {
      plan.scale = 0.5;
      for (Cell& cell : expected.cells) cell *= plan.scale;
    }
    add(Stage::Kind::fourier, after, axes, last);
  }

  // Cosines or sines along some axes, of a real or complex field.
  void transform_waves() {
    const std::vector<int> axes = some_axes();
    if (axes.empty()) return;
    const Transform waves = random_waves(Transform::Kind::r2r);
    for (int axis : axes) expected = transformed(expected, axis + 1, waves, plan.target.lengths[axis]);
    if (plan.scale == 1) {
      plan.scale = 0.5;
      for (Cell& cell : expected.cells) cell *= plan.scale;
    }
    add(Stage::Kind::cosine, plan.target, axes, waves);
  }

  // Changes the order of storage, and the axis that the devices shard.
  void move() {
    Blocks after = plan.target;
    after.order = random_order();
    const std::vector<int> axes = some_axes();
    const auto sharded = std::find(after.mesh_axis.begin(), after.mesh_axis.end(), 0) - after.mesh_axis.begin();
    if (!axes.empty() && sharded < after.ndim() && sharded != pieces) {
      const Index devices = std::exchange(after.parts[sharded], 1);
      after.mesh_axis[sharded] = -1;
      shard(after, axes.front(), devices);
    }
    add(Stage::Kind::move, after);
  }

  // Cuts the block into pieces along an axis, or along the batch (-1).
  void open() {
    pieces = static_cast<int>(random(-1, plan.target.ndim() - 1));
    Stage& opening = add(Stage::Kind::pieces, plan.target);
    opening.axis = pieces;
    opening.count = random(1, 4);
  }

  void join() {
    add(Stage::Kind::joined, plan.target);
    pieces = kNone;
  }

  bool has_pieces() const {
    return std::any_of(plan.stages.begin(), plan.stages.end(),
                       [](const Stage& stage) { return stage.kind == Stage::Kind::pieces; });
  }

  Plan plan;  // its target: the blocks after the last stage
  Whole expected;
  bool is_complex;

 private:
  static constexpr int kNone = -2;

  static Strides counts_of(int ndim) {
    Strides counts{random(1, 3)};
    for (int axis = 0; axis < ndim; ++axis) counts.push_back(random(2, 12));
    return counts;
  }

  static void shard(Blocks& blocks, int axis, Index devices) {
    blocks.parts[axis] = devices;
    blocks.mesh_axis[axis] = 0;
  }

  PerAxis<int> random_order() const {
    PerAxis<int> order = natural(plan.source.ndim());
    std::shuffle(order.begin(), order.end(), engine);
    return order;
  }

  // Some of the axes that are whole on each device, and along which no pieces are cut.
  std::vector<int> some_axes() const {
    std::vector<int> axes;
    for (int axis : random_order()) {
      if (plan.target.parts[axis] == 1 && axis != pieces && random(0, 2) > 0) axes.push_back(axis);
    }
    return axes;
  }

  Stage& add(Stage::Kind kind, const Blocks& after, const std::vector<int>& axes = {},
             const Transform& transform = {}) {
    plan.stages.push_back({kind, plan.target, after, false, false, -1, axes, transform});
    plan.target = after;
    return plan.stages.back();
  }

  int pieces = kNone;
};

// Calls `body(cell, position)` for each cell of a device that is not padding.
template <class Body>
void for_block(const Plan& plan, const Blocks& blocks, Index batch, int device, const Body& body) {
  const Strides stride = dense(kInput, 0, block(blocks, batch), blocks.order).stride;
  const Place place(plan.mesh, device);
  for_all(valid(blocks, batch, place).counts(), [&](Strides cell) {
    const Index position = at(cell, stride);
    for (int axis = 0; axis < blocks.ndim(); ++axis) {
      cell[axis + 1] += place.coordinate(blocks.mesh_axis[axis]) * blocks.core(axis);
    }
    body(cell, position);
  });
}

// Runs the programs of devices in one thread, with messages that are copied twice. A device runs until a message for it
// is missing. `native::link` knows no exchanges of pieces, because only ranks of MPI have them.
class Messenger {
 public:
  Messenger(const std::vector<Program>& programs, const native::Meeting& meeting) {
    for (std::size_t place = 0; place < programs.size(); ++place) {
      const native::Arrival& arrival = *meeting.arrivals[place];
      devices_.emplace_back(Device{programs[place], {}, {}, {}, 0});
      Device& device = devices_.back();
      device.addresses = addresses_of(device.program, arrival.input, arrival.result, device.workspace, 1);
    }
  }

  void run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (std::size_t place = 0; place < devices_.size(); ++place) {
        while (step(static_cast<int>(place))) moves = true;
      }
    }
    for (const Device& device : devices_) expect(device.done == device.program.steps.size(), "a message is missing");
  }

 private:
  struct Device {
    const Program& program;
    Workspace workspace;
    Addresses addresses;
    std::deque<const Exchange*> under_way;
    std::size_t done;
  };
  using Bytes = std::vector<std::byte>;

  bool step(int place) {
    Device& device = devices_[place];
    if (device.done == device.program.steps.size()) return false;
    const Step& step = device.program.steps[device.done];
    const Memory memory{device.addresses};
    const Work work{memory, device.program.bytes[kPlane], Planning::estimate};
    if (const auto* copy = std::get_if<Copy>(&step)) carry_out(*copy, {}, work);
    if (const auto* sweep = std::get_if<Sweep>(&step)) carry_out(*sweep, {}, work);
    if (const auto* measure = std::get_if<Measure>(&step)) carry_out(*measure, {}, work);
    if (const auto* start = std::get_if<Start>(&step)) send(place, start->exchange, memory);
    if (const auto* exchange = std::get_if<Exchange>(&step)) {
      if (device.under_way.empty()) send(place, *exchange, memory);
      if (!receive(place, memory)) return false;
    }
    if (std::holds_alternative<Finish>(step) && !receive(place, memory)) return false;
    ++device.done;
    return true;
  }

  void send(int place, const Exchange& exchange, const Memory& memory) {
    for (const Message& message : exchange.sends) {
      const Piece& piece = message.piece;
      Bytes bytes(piece.region.volume() * exchange.element);
      copy(bytes.data(), dense(kSend, 0, piece.region).stride, memory[piece], piece.stride, piece.region.counts(),
           exchange.element);
      messages_[{place, message.peer}].push_back(std::move(bytes));
    }
    devices_[place].under_way.push_back(&exchange);
  }

  // Receives the messages of the oldest exchange under way, if all of them have been sent.
  bool receive(int place, const Memory& memory) {
    const Exchange& exchange = *devices_[place].under_way.front();
    for (const Message& message : exchange.receives) {
      if (messages_[{message.peer, place}].empty()) return false;
    }
    for (const Message& message : exchange.receives) {
      auto& waiting = messages_[{message.peer, place}];
      const Piece& piece = message.piece;
      expect(static_cast<Index>(waiting.front().size()) == piece.region.volume() * exchange.element, "a wrong length");
      copy(memory[piece], piece.stride, waiting.front().data(), dense(kSend, 0, piece.region).stride,
           piece.region.counts(), exchange.element);
      waiting.pop_front();
    }
    devices_[place].under_way.pop_front();
    return true;
  }

  std::deque<Device> devices_;
  std::map<std::pair<int, int>, std::deque<Bytes>> messages_;  // by sender and receiver
};

void check(const Steps& steps, const Whole& input, bool from_complex, const std::string& what) {
  const Plan& plan = steps.plan;
  const Index batch = input.counts[0], reals_in = from_complex ? 2 : 1, reals_out = steps.is_complex ? 2 : 1;
  const int devices = static_cast<int>(plan.mesh[0]);
  std::vector<Numbers> inputs, results;
  std::vector<Program> programs;
  native::Meeting meeting;
  for (int device = 0; device < devices; ++device) {
    // Padding has no meaning.
    inputs.emplace_back(block(plan.source, batch).volume() * reals_in, std::numeric_limits<double>::quiet_NaN());
    results.emplace_back(block(plan.target, batch).volume() * reals_out);
    for_block(plan, plan.source, batch, device, [&](const Strides& cell, Index position) {
      inputs[device][position * reals_in] = input[cell].real();
      if (from_complex) inputs[device][position * reals_in + 1] = input[cell].imag();
    });
    const Number number = from_complex ? Number::c128 : Number::f64;
    programs.push_back(compile(plan, batch, reals_in * static_cast<Index>(sizeof(double)), number, device));
    meeting.arrivals.push_back(native::Arrival{device, device, inputs[device].data(), results[device].data(), {}});
  }
  if (steps.has_pieces()) {
    Messenger(programs, meeting).run();
  } else {
    Engine::get().run(native::link(std::move(programs)), meeting, 2, Planning::estimate);
  }
  // Errors add up along the lines of transforms.
  constexpr double kErrors[] = {1e-12, 1e-5, 0.3, 0.04};
  double largest = 0;
  for (const Cell& cell : steps.expected.cells) largest = std::max(largest, std::abs(cell));
  for (int device = 0; device < devices; ++device) {
    for_block(plan, plan.target, batch, device, [&](const Strides& cell, Index position) {
      const double* numbers = &results[device][position * reals_out];
      const Cell got(numbers[0], steps.is_complex ? numbers[1] : 0);
      expect(std::abs(got - steps.expected[cell]) <= kErrors[static_cast<int>(plan.wire)] * largest, what);
    });
  }
}

}  // namespace

void test_resizes() {
  for (int trial = 0; trial < 300; ++trial) {
    Steps steps(static_cast<int>(random(1, 3)), static_cast<int>(random(1, 3)));
    const Whole input = steps.expected;
    const bool from_complex = steps.is_complex;
    if (random(0, 1)) steps.plan.wire = static_cast<Wire>(random(1, 3));
    const Index count = random(2, 6), opens = random(0, 2 * count),
                joins = random(std::min(opens, count) + 1, count + 1);
    for (Index i = 0; i < count; ++i) {
      if (i == opens) steps.open();
      if (i == joins) steps.join();
      const Index kind = random(0, 4);
      if (kind < 2) steps.resize();
      if (kind == 2 || kind == 3) steps.transform();
      if (kind == 4) steps.move();
    }
    if (joins >= count && opens < count) steps.join();
    check(steps, input, from_complex, "resizes " + std::to_string(trial));
  }
}
