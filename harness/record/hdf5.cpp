#include "record/hdf5.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <system_error>
#include <variant>

#include "io/file.hpp"
#include "scape/error.hpp"

namespace scape::hdf5 {
namespace {

constexpr hsize_t chunk_elements = 256;  // or one row: 2 KiB: little waste in short runs, 400 chunks in 100,000 steps

// The innermost entry of HDF5's error stack carries the reason ("... error message = 'No space left on device' ...").
std::string hdf5_reason() {
  std::string reason;
  const auto take_first = [](unsigned n, const H5E_error2_t* error, void* text) -> herr_t {
    if (n == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &reason);
  constexpr std::string_view marker = "error message = '";
  if (const auto begin = reason.find(marker); begin != std::string::npos) {
    const auto end = reason.find('\'', begin + marker.size());
    reason = reason.substr(begin + marker.size(), end - begin - marker.size());
  }
  if (reason == std::generic_category().message(EAGAIN)) return "another process has it open";  // HDF5 locks its files
  return reason.empty() ? "unknown reason" : reason;
}

[[noreturn]] void fail(const std::string& where, std::string_view what) {
  throw Error(ErrorKind::input, fmt::format("{}: cannot {}: {}", where, what, hdf5_reason()));
}

void check(herr_t status, const std::string& where, std::string_view what) {
  if (status < 0) fail(where, what);
}

Handle owned(hid_t id, Handle::Close close, const std::string& where, std::string_view what) {
  if (id < 0) fail(where, what);
  return {id, close};
}

hsize_t product(const std::vector<hsize_t>& extent) {
  return std::accumulate(extent.begin(), extent.end(), hsize_t{1}, std::multiplies<>());
}

// h5py's boolean: an enumeration {FALSE, TRUE} of one byte.
Handle bool_type() {
  Handle type(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose);
  for (const auto& [name, value] : {std::pair{"FALSE", std::int8_t{0}}, std::pair{"TRUE", std::int8_t{1}}}) {
    H5Tenum_insert(type.id(), name, &value);
  }
  return type;
}

Handle string_type() {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.id(), H5T_VARIABLE);
  H5Tset_cset(type.id(), H5T_CSET_UTF8);
  return type;
}

Handle array_space(hsize_t size, const std::string& where) {
  return owned(H5Screate_simple(1, &size, nullptr), H5Sclose, where, "describe an array");
}

template <class Call>  // call(file type, memory type, address of the value)
auto with_type(const OptionValue& value, Call call) {
  struct Visitor {
    Call& call;
    auto operator()(bool v) const {
      const auto byte = static_cast<std::int8_t>(v);
      const Handle type = bool_type();
      return call(type.id(), type.id(), &byte);
    }
    auto operator()(std::int64_t v) const { return call(H5T_STD_I64LE, H5T_NATIVE_INT64, &v); }
    auto operator()(double v) const { return call(H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &v); }
    auto operator()(const std::string& v) const {
      const char* text = v.c_str();
      const Handle type = string_type();
      return call(type.id(), type.id(), &text);
    }
  };
  return std::visit(Visitor{call}, value);
}

}  // namespace

void Object::set_attribute(const std::string& name, const OptionValue& value) {
  const auto what = fmt::format("write attribute '{}'", name);
  with_type(value, [&](hid_t file_type, hid_t memory_type, const void* data) {
    write_attribute(name, file_type, memory_type, owned(H5Screate(H5S_SCALAR), H5Sclose, where_, what), data);
  });
}

void Object::set_attribute(const std::string& name, const std::vector<std::int64_t>& values) {
  write_attribute(name, H5T_STD_I64LE, H5T_NATIVE_INT64, array_space(values.size(), where_), values.data());
}

void Object::set_attribute(const std::string& name, const std::vector<double>& values) {
  write_attribute(name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, array_space(values.size(), where_), values.data());
}

void Object::set_attribute(const std::string& name, const std::vector<std::string>& values) {
  std::vector<const char*> texts;
  for (const std::string& value : values) texts.push_back(value.c_str());
  const Handle type = string_type();
  write_attribute(name, type.id(), type.id(), array_space(texts.size(), where_), texts.data());
}

void Object::write_attribute(const std::string& name, hid_t file_type, hid_t memory_type, const Handle& space, const void* data) {
  remove_attribute(name);
  const auto what = fmt::format("write attribute '{}'", name);
  const Handle attribute =
      owned(H5Acreate2(handle_.id(), name.c_str(), file_type, space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose, where_, what);
  check(H5Awrite(attribute.id(), memory_type, data), where_, what);
}

std::optional<OptionValue> Object::attribute(const std::string& name) const {
  const auto what = fmt::format("read attribute '{}'", name);
  const htri_t exists = H5Aexists(handle_.id(), name.c_str());
  check(exists, where_, what);
  if (exists == 0) return std::nullopt;
  const Handle attribute = owned(H5Aopen(handle_.id(), name.c_str(), H5P_DEFAULT), H5Aclose, where_, what);
  const Handle type = owned(H5Aget_type(attribute.id()), H5Tclose, where_, what);
  const Handle space = owned(H5Aget_space(attribute.id()), H5Sclose, where_, what);
  const auto read = [&](hid_t memory_type, void* data) { check(H5Aread(attribute.id(), memory_type, data), where_, what); };
  const H5T_class_t kind = H5Sget_simple_extent_npoints(space.id()) == 1 ? H5Tget_class(type.id()) : H5T_NO_CLASS;
  if (kind == H5T_ENUM) {
    std::int8_t value = 0;
    read(bool_type().id(), &value);
    return value != 0;
  }
  if (kind == H5T_INTEGER) {
    std::int64_t value = 0;
    read(H5T_NATIVE_INT64, &value);
    return value;
  }
  if (kind == H5T_FLOAT) {
    double value = 0;
    read(H5T_NATIVE_DOUBLE, &value);
    return value;
  }
  if (kind == H5T_STRING && H5Tis_variable_str(type.id()) > 0) {
    char* text = nullptr;
    const Handle memory_type = string_type();
    read(memory_type.id(), &text);
    std::string value(text == nullptr ? "" : text);
    H5Dvlen_reclaim(memory_type.id(), space.id(), H5P_DEFAULT, &text);
    return value;
  }
  throw Error(ErrorKind::input, fmt::format("{}: attribute '{}' is not a number, boolean or text", where_, name));
}

void Object::remove_attribute(const std::string& name) {
  const auto what = fmt::format("replace attribute '{}'", name);
  const htri_t exists = H5Aexists(handle_.id(), name.c_str());
  check(exists, where_, what);
  if (exists > 0) check(H5Adelete(handle_.id(), name.c_str()), where_, what);
}

std::vector<std::string> Object::attribute_names() const {
  std::vector<std::string> names;
  const auto take = [](hid_t, const char* name, const H5A_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  check(H5Aiterate2(handle_.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, take, &names), where_, "list the attributes");
  return names;
}

std::vector<hsize_t> Dataset::extent() const {
  const Handle space = owned(H5Dget_space(handle_.id()), H5Sclose, where_, "read the size");
  const int dimensions = H5Sget_simple_extent_ndims(space.id());
  if (dimensions < 1) throw Error(ErrorKind::input, where_ + ": has no rows");
  std::vector<hsize_t> extent(static_cast<std::size_t>(dimensions));
  H5Sget_simple_extent_dims(space.id(), extent.data(), nullptr);
  return extent;
}

std::int64_t Dataset::size() const {
  return static_cast<std::int64_t>(extent().front());
}

std::vector<std::int64_t> Dataset::row_shape() const {
  const std::vector<hsize_t> all = extent();
  return {all.begin() + 1, all.end()};
}

void Dataset::resize(std::int64_t rows) {
  std::vector<hsize_t> wanted = extent();
  wanted.front() = static_cast<hsize_t>(rows);
  check(H5Dset_extent(handle_.id(), wanted.data()), where_, "resize");
}

std::vector<double> Dataset::read() const {
  std::vector<double> values(product(extent()));
  check(H5Dread(handle_.id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), where_, "read");
  return values;
}

void Dataset::write(std::int64_t first_row, std::span<const double> values) {
  if (values.empty()) return;
  std::vector<hsize_t> count = extent();
  count.front() = 1;
  count.front() = values.size() / product(count);
  std::vector<hsize_t> begin(count.size(), 0);
  begin.front() = static_cast<hsize_t>(first_row);
  const Handle file_space = owned(H5Dget_space(handle_.id()), H5Sclose, where_, "write");
  check(H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr), where_, "write");
  const hsize_t elements = product(count);
  require(elements == values.size(), ErrorKind::internal, "run file: not a whole number of rows");
  const Handle memory_space = owned(H5Screate_simple(1, &elements, nullptr), H5Sclose, where_, "write");
  check(H5Dwrite(handle_.id(), H5T_NATIVE_DOUBLE, memory_space.id(), file_space.id(), H5P_DEFAULT, values.data()), where_, "write");
}

Group Group::create_group(const std::string& name) {
  const std::string place = where_ + "/" + name;
  return {owned(H5Gcreate2(handle_.id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose, place, "create the group"),
          place};
}

Group Group::group(const std::string& name) const {
  const std::string place = where_ + "/" + name;
  return {owned(H5Gopen2(handle_.id(), name.c_str(), H5P_DEFAULT), H5Gclose, place, "open the group"), place};
}

Dataset Group::create_dataset(const std::string& name, ElementType type, const std::vector<std::int64_t>& row_shape) {
  const std::string place = where_ + "/" + name;
  std::vector<hsize_t> chunk{1};
  chunk.insert(chunk.end(), row_shape.begin(), row_shape.end());
  std::vector<hsize_t> size = chunk;
  std::vector<hsize_t> limit = chunk;
  chunk.front() = std::max<hsize_t>(1, chunk_elements / product(chunk));
  size.front() = 0;
  limit.front() = H5S_UNLIMITED;
  const auto dimensions = static_cast<int>(chunk.size());
  const Handle space = owned(H5Screate_simple(dimensions, size.data(), limit.data()), H5Sclose, place, "create the dataset");
  const Handle layout = owned(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, place, "create the dataset");
  check(H5Pset_chunk(layout.id(), dimensions, chunk.data()), place, "create the dataset");
  const bool whole = type == ElementType::int64;
  const double fill = whole ? -1 : std::numeric_limits<double>::quiet_NaN();
  check(H5Pset_alloc_time(layout.id(), H5D_ALLOC_TIME_EARLY), place, "create the dataset");
  check(H5Pset_fill_value(layout.id(), H5T_NATIVE_DOUBLE, &fill), place, "create the dataset");
  const hid_t file_type = whole ? H5T_STD_I64LE : H5T_IEEE_F64LE;
  return {owned(H5Dcreate2(handle_.id(), name.c_str(), file_type, space.id(), H5P_DEFAULT, layout.id(), H5P_DEFAULT), H5Dclose,
                place, "create the dataset"),
          place};
}

Dataset Group::dataset(const std::string& name) const {
  const std::string place = where_ + "/" + name;
  return {owned(H5Dopen2(handle_.id(), name.c_str(), H5P_DEFAULT), H5Dclose, place, "open the dataset"), place};
}

bool Group::contains(const std::string& name) const {
  return H5Lexists(handle_.id(), name.c_str(), H5P_DEFAULT) > 0;
}

std::vector<std::string> Group::members() const {
  std::vector<std::string> names;
  const auto take = [](hid_t, const char* name, const H5L_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  check(H5Literate(handle_.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, take, &names), where_, "list the members");
  return names;
}

namespace {

Handle open_file(const std::string& path, Mode mode, const std::string& where) {
  H5dont_atexit();  // HDF5 1.10 crashes in its exit handler when a file could not be closed; ours are closed by their owners
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors are thrown, not printed
  switch (mode) {
    case Mode::create:
      return owned(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT), H5Fclose, where, "create the file");
    case Mode::modify:
      return owned(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose, where, "open the file for writing");
    case Mode::read:
      break;
  }
  return owned(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, where, "open the file");
}

int descriptor_of(const Handle& file, const std::string& where) {
  void* descriptor = nullptr;
  check(H5Fget_vfd_handle(file.id(), H5P_DEFAULT, &descriptor), where, "find the descriptor");
  return *static_cast<int*>(descriptor);
}

}  // namespace

File::File(const std::filesystem::path& path, Mode mode, const std::filesystem::path& name)
    : Group(open_file(path.string(), mode, (name.empty() ? path : name).string()), (name.empty() ? path : name).string()) {
  if (mode != Mode::read) lock(descriptor_of(handle_, where_), where_);
}

bool has_signature(const std::filesystem::path& path) {
  constexpr std::string_view signature = "\x89HDF\r\n\x1a\n";
  std::array<char, signature.size()> begin{};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  return std::string_view(begin.data(), begin.size()) == signature;
}

void File::reserve(std::int64_t bytes) {
  hsize_t used = 0;
  check(H5Fget_filesize(handle_.id(), &used), where_, "find the size");
  const int fd = descriptor_of(handle_, where_);
  struct stat status {};
  const auto wanted = static_cast<off_t>(used) + bytes;
  if (fstat(fd, &status) == 0 && status.st_size >= wanted) return;  // HDF5 cuts the file whenever it has grown
  if (const int error = posix_fallocate(fd, static_cast<off_t>(used), bytes); error != 0) {
    throw Error(ErrorKind::input, fmt::format("{}: cannot reserve disk space: {}", where_, std::generic_category().message(error)));
  }
}

void File::flush() {
  check(H5Fflush(handle_.id(), H5F_SCOPE_GLOBAL), where_, "flush");
}

void File::close() {
  flush();
  hsize_t used = 0;
  check(H5Fget_filesize(handle_.id(), &used), where_, "find the size");
  handle_ = Handle();
  std::error_code error;
  std::filesystem::resize_file(where_, used, error);  // if not, the file is only larger than it needs to be
}

}  // namespace scape::hdf5
