// The way of a part: up on one stream, down on another, the compute stream in between.
#include "methods/offload.hpp"

namespace scape {

Staging::Staging(Device device, std::int64_t piece, int vectors) : piece_((piece + line - 1) / line * line), started_(device) {
  if (vectors == 0) return;
  for (Slot& slot : slots_) slot = {Buffer<float>(vectors * vector_room(), device), Event(device), Event(device), Event(device)};
  upload_ = Stream(device);
  download_ = Stream(device);
}

Span<float> Staging::place(int vector, Range part) const {
  return slots_[slot_].memory.span().subspan(vector * vector_room() + part.begin % line, part.size());
}

// Uploads read what `stream`, and the downloads that it has waited for, have left.
void Staging::start(const Stream& stream) {
  started_.record(stream);
  upload_.wait(started_);
}

void Staging::fetch(Range part, Vectors vectors, Parts parts, const Stream& stream) {
  Slot& slot = slots_[slot_];
  upload_.wait(slot.free);
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    if (!vectors[i].offloaded || vectors[i].use == Use::write) continue;
    copy(parts[i], vectors[i].all.subspan(part.begin, part.size()), upload_);
  }
  slot.arrived.record(upload_);
  stream.wait(slot.arrived);
}

void Staging::give_back(Range part, Vectors vectors, Parts parts, const Stream& stream) {
  Slot& slot = slots_[slot_];
  slot.left.record(stream);
  download_.wait(slot.left);
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    if (!vectors[i].offloaded || vectors[i].use == Use::read) continue;
    copy(vectors[i].all.subspan(part.begin, part.size()), parts[i], download_);
  }
  slot.free.record(download_);
  slot_ = 1 - slot_;
}

void Staging::finish(const Stream& stream) const {
  for (const Slot& slot : slots_) stream.wait(slot.free);
}

}  // namespace scape
