// A small owner's view of the HDF5 C API: files, groups, growing datasets and attributes. Every failure is
// one scape::Error(input) that names file and object and gives the reason found by HDF5; nothing is printed by HDF5 itself.
// Files keep the default ("earliest") format bounds: after a kill they open plainly up to the last flush.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scape/config.hpp"

namespace scape::hdf5 {

/// Owns one HDF5 identifier.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  [[nodiscard]] hid_t id() const { return id_; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

enum class ElementType { int64, float64 };

/// What a file, a group and a dataset have in common: a place in a file, and attributes.
class Object {
 public:
  /// Creates or replaces. A bool becomes h5py's boolean, text a variable-length UTF-8 string.
  void set_attribute(const std::string& name, const OptionValue& value);
  /// A one-dimensional array.
  void set_attribute(const std::string& name, const std::vector<std::int64_t>& values);
  void set_attribute(const std::string& name, const std::vector<double>& values);
  void set_attribute(const std::string& name, const std::vector<std::string>& values);
  /// Empty when there is no such attribute. Throws Error(input) for one of another kind than OptionValue holds.
  [[nodiscard]] std::optional<OptionValue> attribute(const std::string& name) const;
  void remove_attribute(const std::string& name);  // if it is there
  /// In alphabetical order.
  [[nodiscard]] std::vector<std::string> attribute_names() const;

 protected:
  Object(Handle handle, std::string where) : handle_(std::move(handle)), where_(std::move(where)) {}
  void write_attribute(const std::string& name, hid_t file_type, hid_t memory_type, const Handle& space, const void* data);
  Handle handle_;
  std::string where_;  // "run.h5" or "run.h5/steps/loss"
};

/// Rows of one shape (that of a plain number is empty): chunked, resizable in the number of rows, uncompressed. Disk space is
/// allocated when it grows, so that writing touches no metadata. Elements never written read as NaN, in int64 as -1. Values cross
/// this interface as double, row by row; int64 holds whole numbers below 2^53 exactly.
class Dataset : public Object {
 public:
  [[nodiscard]] std::int64_t size() const;  // rows
  [[nodiscard]] std::vector<std::int64_t> row_shape() const;
  void resize(std::int64_t rows);
  [[nodiscard]] std::vector<double> read() const;
  /// The rows from `first_row` on ← values, a whole number of rows; they must be there.
  void write(std::int64_t first_row, std::span<const double> values);

 private:
  friend class Group;
  using Object::Object;
  [[nodiscard]] std::vector<hsize_t> extent() const;
};

class Group : public Object {
 public:
  [[nodiscard]] Group create_group(const std::string& name);
  [[nodiscard]] Group group(const std::string& name) const;
  [[nodiscard]] Dataset create_dataset(const std::string& name, ElementType type, const std::vector<std::int64_t>& row_shape = {});
  [[nodiscard]] Dataset dataset(const std::string& name) const;
  [[nodiscard]] bool contains(const std::string& name) const;
  /// Names of the members, in alphabetical order.
  [[nodiscard]] std::vector<std::string> members() const;

 protected:
  using Object::Object;
};

enum class Mode {
  create,  ///< must not exist
  modify,  ///< must exist
  read,    ///< must exist
};

/// Whether a file begins as an HDF5 file does; it may be damaged behind that.
[[nodiscard]] bool has_signature(const std::filesystem::path& path);

/// An open file, and its root group. Open for writing, it is locked against other writers, whatever HDF5_USE_FILE_LOCKING says.
class File : public Group {
 public:
  /// `name` is what the file will be called when it is closed, and what messages call it; empty: path.
  File(const std::filesystem::path& path, Mode mode, const std::filesystem::path& name = {});
  /// Obtains disk space for `bytes` more than the file has. HDF5 cannot take back a write that fails half-way: a file on a
  /// full disk would not open again. So reserve first, then write, then flush; when this throws, the file is as it was flushed
  /// last.
  void reserve(std::int64_t bytes);
  /// Hands everything written so far to the operating system.
  void flush();
  /// Flushes, closes and returns reserved space. Close the groups and datasets before.
  void close();
};

}  // namespace scape::hdf5
