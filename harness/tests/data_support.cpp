#include "data_support.hpp"

#include <sentencepiece_trainer.h>
#include <zlib.h>
#include <zstd.h>

namespace scape::testing {

std::string gzip(const std::string& text) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw Error(ErrorKind::internal, "zlib");
  std::string packed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) throw Error(ErrorKind::internal, "zlib");
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(const std::string& text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress2(context, packed.data(), packed.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return packed;
}

const std::string& small_model() {
  static const std::string model = [] {
    const TemporaryFolder folder;
    std::string text;
    for (int i = 0; i < 40; ++i)
      text += "the cat and the dog of the house " + std::to_string(i) + " ran to the river and the other cat sat\n";
    write_bytes(folder / "text", text);
    std::string trained;
    const auto status = sentencepiece::SentencePieceTrainer::Train({{"input", (folder / "text").string()},

                                                                    {"model_type", "bpe"},
                                                                    {"vocab_size", "300"},
                                                                    {"byte_fallback", "true"},
                                                                    {"normalization_rule_name", "identity"},
                                                                    {"remove_extra_whitespaces", "false"},
                                                                    {"num_threads", "1"},
                                                                    {"minloglevel", "2"}},
                                                                   nullptr, &trained);
    if (!status.ok()) throw Error(ErrorKind::internal, status.ToString());
    return trained;
  }();
  return model;
}

}  // namespace scape::testing
