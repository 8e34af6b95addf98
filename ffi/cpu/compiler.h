// The compiler of plans: it compiles stage by stage, and keeps track of the state of the block after each stage.

#pragma once

#include <algorithm>

#include "cpu/place.h"
#include "cpu/program.h"

namespace decompops {

// The state of a block after the stages that have been compiled so far.
struct State {
  Field current_;
  PerAxis<int> order_;          // the storage order of most pieces; the same on all ranks
  Index element_;               // the bytes of a cell
  std::vector<Lines> pending_;  // transforms, collected until the place of their results is known
  std::vector<std::pair<int, Index>>
      padded_;  // axes that their next transforms begin with zeros at the end, and their lengths
  bool scaled_ = false;
  int gathered_ = -1;
};

class Compiler : private State {
 public:
  Compiler(const Plan& plan, Index batch, Index element, Number number, int place, const std::vector<int>& node);

  Program run();

 private:
  // The cells from `low` to `high` along `axis` of a block, or all cells if `axis` is -1.
  struct Cut {
    int axis = -1;
    Index low = 0, high = 0;
  };
  // The buffers for sent cells, for received cells, and for cells that stay on this rank.
  struct Buffers {
    Buffer send, receive, stay;
  };
  // An exchange. Cells are written to `out` before the exchange, and are in `in` after the exchange.
  struct Handed {
    Field out, in;
    Exchange exchange;
  };

  // program.cc
  void add(std::size_t index);
  void transform(const Stage& stage);
  void resize(const Stage& stage);
  void pad();
  void flush(const Field* to);
  Field between(const Region& region, const Lines& lines, const Lines& next, Sweep& sweep);
  Field in_scratch(const Region& region, const Sweep& sweep);
  void settle();
  Region result_region() const;
  Index element_after(const Lines& lines) const;
  // The bytes of a cell after the pending transforms.
  Index last_element() const { return pending_.empty() ? element_ : element_after(pending_.back()); }
  void copy(const Field& to, bool sum = false);
  void fill(const Field& to, const Stage& stage);
  Field result() const;
  bool has_result() const;
  void finish();
  Buffer scratch(const Region& region, const Field& read);

  // moves.cc
  static int whole_after(const Blocks& before, const Blocks& after);
  static bool moves_nothing(const Stage& stage);
  bool is_last(const Stage& stage) const;
  void move(const Stage& stage);
  void move_packed(const Stage& stage);
  bool is_on_node(const Stage& stage, int gathered) const;
  void move_cells(const Stage& stage, int gathered, int divided);
  Handed hand_over(const Stage& stage, const Region& before, Index element, const Buffers& buffers);
  Piece next(Buffer buffer, const Region& region, Index element);
  void communicate(const Exchange& exchange);
  void extend(std::size_t index);
  void reduce(std::size_t index);
  void exchange_halo(const Stage& stage, const Field& to);
  void crop(const Stage& stage);

  // overlap.cc
  std::size_t add_pieces(std::size_t first);
  void end_piece(std::size_t piece, std::size_t last, const State& start, bool handed);
  Field target_of_pieces(std::size_t last, const State& start, bool handed);
  Field hand_over_pieces(std::size_t first, const Field& beside);
  std::vector<Cut> cuts_of(const Stage& opening) const;
  static int slot_of(std::size_t piece) { return 1 + static_cast<int>(piece % 2); }
  std::size_t first_exchange(std::size_t first) const;
  bool ends_pieces(const Stage& stage) const;
  // The cells of the piece that is being compiled.
  Region cut(Region region) const;
  Field cut(const Field& field) const;

  Region block(const Blocks& layout) const { return cut(decompops::block(layout, batch_)); }
  Region valid(const Blocks& layout) const { return cut(decompops::valid(layout, batch_, place_)); }

  // The bytes of a number of the field, divided by those of a number that is sent.
  Index narrow_ratio() const { return plan_.wire == Wire::none ? 1 : real_bytes_ / (plan_.wire == Wire::f32 ? 4 : 2); }
  void reserve(Buffer buffer, Index bytes) { program_.bytes[buffer] = std::max(program_.bytes[buffer], bytes); }
  // The buffer of this kind that belongs to the piece that is being compiled.
  Buffer in_slot(Buffer buffer) const { return static_cast<Buffer>(buffer + slot_ * kOwn); }
  // `buffer`, or the second buffer of the same kind if `field` still has cells in the first one.
  static Buffer free_of(const Field& field, Buffer buffer);
  static bool lies_in(const Field& field, Buffer buffer);

  const Plan& plan_;
  Index batch_;
  Number number_;
  Index real_bytes_;
  int ndim_;
  Place place_;
  const std::vector<int>& node_;
  std::array<Index, kBuffers> used_{};  // for each buffer, the bytes that messages already take
  Program program_;

  // The state of the pieces that are being compiled.
  int slot_ = 0;  // 1 and 2 in turns for pieces; 0 for a whole block
  Cut cut_;
  Buffer last_received_ = kReceive;  // holds the last received cells until all pieces have arrived
  Field joined_;                     // the results of all pieces
  std::vector<Handed> handed_;       // the first exchange of each piece, if earlier steps write the cells for it
};

}  // namespace decompops
