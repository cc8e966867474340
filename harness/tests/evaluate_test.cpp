// Scores against the definition computed position by position, and evaluations of two models made by hand, of which every
// probability is known: one that looks at nothing (a fixed distribution over bytes) and one that looks at the last byte alone.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <numeric>

#include "data/prepare.hpp"
#include "data/token_stream.hpp"
#include "data_support.hpp"
#include "evaluate/evaluate.hpp"
#include "evaluate/generate.hpp"
#include "evaluate/score.hpp"
#include "model_test_support.hpp"

namespace scape {
namespace {

using scape::testing::message_of;
using scape::testing::TemporaryFolder;
using scape::testing::write_bytes;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

std::span<float> tensor(Model& model, const char* name) {
  const Range range = model.layout().tensor(name).range;
  return model.params().subspan(range.begin, range.size()).host();
}

// A GPT of bytes with all parameters zero: its blocks add nothing to the embedding.
std::unique_ptr<Model> blank_model(std::int64_t width) {
  ModelConfig config = small_config("gpt");
  config.vocab = 256;
  config.context = 16;
  config.layers = config.heads = config.kv_heads = 1;
  config.width = width;
  config.tied_embedding = false;
  auto model = make_model(config);
  std::ranges::fill(model->params().host(), 0.0F);
  return model;
}

// log p of a byte, whatever is before it.
double known_log_p(unsigned char byte) {
  const std::map<int, double> known{{' ', -1}, {'a', -1}, {'b', -3}, {'c', -4}, {0xc3, -3}, {0xa9, -3}};
  double rest = 1;
  for (const auto& [unused, log_p] : known) rest -= std::exp(log_p);
  const auto found = known.find(byte);
  return found != known.end() ? found->second : std::log(rest / static_cast<double>(256 - known.size()));
}

double known_log_p(const std::string& text) {
  return std::accumulate(text.begin(), text.end(), 0.0,
                         [](double sum, char c) { return sum + known_log_p(static_cast<unsigned char>(c)); });
}

std::unique_ptr<Model> unigram_model() {
  auto model = blank_model(8);
  tensor(*model, "norm.shift")[0] = 1;  // the last norm gives e_0 for every token
  const auto head = tensor(*model, "head");
  for (std::size_t v = 0; v < 256; ++v) head[v * 8] = static_cast<float>(known_log_p(static_cast<unsigned char>(v)));
  return model;
}

// All but certain that behind a byte comes the next one of the circle `text`.
std::unique_ptr<Model> circle_model(const std::string& text) {
  auto model = blank_model(256);
  const auto embedding = tensor(*model, "embedding");
  for (std::size_t v = 0; v < 256; ++v) embedding[v * 256 + v] = 1;
  std::ranges::fill(tensor(*model, "norm.scale"), 1.0F);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto from = static_cast<unsigned char>(text[i]);
    const auto to = static_cast<unsigned char>(text[(i + 1) % text.size()]);
    tensor(*model, "head")[to * 256U + from] = 1;
  }
  return model;
}

class Scores : public ::testing::TestWithParam<std::string> {};

TEST_P(Scores, IsTheSumOfLogSoftmaxPositionByPosition) {
  const ModelConfig config = small_config(GetParam());
  const auto model = make_model(config);
  stir_vectors(*model);
  std::vector<Passage> passages{{random_ids(10, config.vocab, 1), 4}, {random_ids(3, config.vocab, 2), 2}, {{3, 4}, 1}};
  const auto row = [&](std::span<const std::int32_t> prefix) {  // logits behind a text, computed alone
    Floats all(prefix.size() * static_cast<std::size_t>(config.vocab));
    model->logits({prefix, {}, 1, std::ssize(prefix)}, span_of(all), Stream());
    return Floats(all.end() - config.vocab, all.end());
  };
  // One that greedy decoding writes.
  Passage greedy{{5, 6}, 3};
  for (int i = 0; i < 3; ++i) {
    const Floats z = row(greedy.ids);
    greedy.ids.push_back(static_cast<std::int32_t>(std::ranges::max_element(z) - z.begin()));
  }
  passages.push_back(greedy);

  const std::vector<Score> scores = score(*model, passages);
  ASSERT_EQ(scores.size(), passages.size());
  for (std::size_t i = 0; i < passages.size(); ++i) {
    const auto& [ids, scored] = passages[i];
    double expected = 0;
    for (std::size_t at = ids.size() - static_cast<std::size_t>(scored); at < ids.size(); ++at) {
      const Floats z = row(std::span(ids).first(at));
      double sum = 0;
      for (const float value : z) sum += std::exp(static_cast<double>(value));
      expected += static_cast<double>(z[static_cast<std::size_t>(ids[at])]) - std::log(sum);
    }
    EXPECT_NEAR(scores[i].log_likelihood, expected, 1e-4) << i;
    EXPECT_EQ(scores[i].greedy, i == 3) << i;
  }
  tensor(*model, "norm.scale")[0] = NAN;
  EXPECT_THAT(message_of(ErrorKind::input, [&] { (void)score(*model, passages); }), HasSubstr("logits are not finite"));
}

INSTANTIATE_TEST_SUITE_P(Families, Scores, ::testing::Values("gpt", "llama"),
                         [](const auto& param_info) { return param_info.param; });

TEST(Passage, TakesTheTokensThatTheWholeTextHasMore) {
  const Tokenizer bytes;
  const auto cut = [&](const char* context, const char* continuation, std::int64_t longest = 20) {
    const auto passage = make_passage(bytes, context, continuation, longest, "f: line 1");
    return passage ? bytes.decode(passage->ids) + "|" + std::to_string(passage->scored) : "none";
  };
  EXPECT_EQ(cut("ab", " cd"), "ab cd|3");
  EXPECT_EQ(cut("ab ", "cd"), "ab cd|3") << "white space is the continuation's";
  EXPECT_EQ(cut("abcdef", "gh", 4), "defgh|2") << "the last of five tokens is only a target";
  EXPECT_EQ(cut("abcdef", "ghij", 4), "fghij|4");
  EXPECT_EQ(cut("abc", "defgh", 4), "none") << "longer than all that can be scored";
  EXPECT_EQ(cut("abc", "", 4), "none");
  EXPECT_THAT(message_of(ErrorKind::input, [&] { cut(" ", "de"); }), HasSubstr("f: line 1: there is no text before"));

  const TemporaryFolder folder;
  write_bytes(folder / "m", scape::testing::small_model());
  const Tokenizer pieces((folder / "m").string());
  const Passage passage = make_passage(pieces, "the cat and", " the dog", 20, "").value();
  EXPECT_EQ(pieces.decode(passage.ids), "the cat and the dog");
  EXPECT_EQ(pieces.decode(Ids(passage.ids.end() - passage.scored, passage.ids.end())), "the dog");
  const Passage from_start = make_passage(pieces, "", "the dog", 20, "").value();
  EXPECT_EQ(from_start.ids.front(), pieces.end_token());
  EXPECT_EQ(from_start.scored, std::ssize(pieces.encode("the dog")));
}

TEST(Tally, MeanAndStandardError) {
  Tally tally;
  for (const double value : {1.0, 0.0, 0.0, 1.0, 1.0}) tally.add(value);
  EXPECT_DOUBLE_EQ(tally.mean(), 0.6);
  EXPECT_DOUBLE_EQ(tally.standard_error(), std::sqrt(0.6 * 0.4 / 4));  // √(p(1−p)/(n−1))
  Tally one;
  one.add(3);
  EXPECT_TRUE(std::isnan(one.standard_error()));
}

TEST(Choices, AccAndAccNormWhereTheyDiffer) {
  const auto model = unigram_model();
  const TemporaryFolder folder;
  // " aaaa": −5 and −5/4 a byte; " b": −4 and −4; "é" is two bytes: " é" −7 and −7/2, " c" −5 and −5 (by characters "é" would
  // lose).
  write_bytes(
      folder / "q.jsonl",
      "{\"context\": \"x\", \"choices\": [\"aaaa\", \"b\"], \"label\": 0}\n"
      "  \n"
      "{\"context\": \"x\", \"choices\": [\"\\u00e9\", \"c\"], \"label\": 0, \"id\": 7}\n"
      "{\"context\": \"x \", \"choices\": [\"c\", \"b\"], \"label\": 1}\n"
      "{\"context\": \"the context is longer than the model can see\", \"choices\": [\" c\", \"c\", \"b\"], \"label\": 2}\n");
  const auto questions = read_choice_questions(folder / "q.jsonl");
  ASSERT_EQ(questions.size(), 4U);
  EXPECT_EQ(questions[1].place, (folder / "q.jsonl").string() + ": line 3");
  const ChoiceTally found = evaluate_choices(*model, Tokenizer(), questions, {});
  EXPECT_EQ(found.acc.count, 4);
  EXPECT_EQ(found.acc.sum, 2);       // the first two are lost
  EXPECT_EQ(found.acc_norm.sum, 3);  // " c" of the last wins: −5/2 a byte
  ChoiceTally second = evaluate_choices(*model, Tokenizer(), questions, {1, 3});
  EXPECT_EQ(second.acc.count, 1);
  EXPECT_EQ(second.acc_norm.sum, 1);
}

TEST(Choices, AreSkippedAndCountedWhereOneCannotBeScored) {
  const auto model = unigram_model();
  const std::string too_long(static_cast<std::size_t>(model->config().context) + 1, 'b');
  const std::vector<ChoiceQuestion> questions{{.place = "1", .context = "x", .choices = {"c", too_long}, .label = 1},
                                              {.place = "2", .context = "x", .choices = {"c", "b"}, .label = 1}};
  const ChoiceTally found = evaluate_choices(*model, Tokenizer(), questions, {});
  EXPECT_EQ(found.skipped, 1);
  EXPECT_EQ(found.acc.count, 1);
  EXPECT_EQ(found.acc_norm.sum, 1);
  const LastWordTally words = evaluate_last_words(*model, Tokenizer(), {{"1", "x", too_long}, {"2", "x", " b"}}, {});
  EXPECT_EQ(words.skipped, 1);
  EXPECT_EQ(words.acc.count, 1);
}

TEST(LastWords, AccuracyAndPerplexity) {
  const TemporaryFolder folder;
  write_bytes(folder / "l.jsonl.gz",
              scape::testing::gzip("{\"text\": \"he sat. she sat.\\n\"}\n{\"text\": \"b a\"}\n{\"text\": \"sat bc\"}"));
  const auto questions = read_last_word_questions(folder / "l.jsonl.gz");
  ASSERT_EQ(questions.size(), 3U);
  EXPECT_EQ(questions[0].context, "he sat. she");
  EXPECT_EQ(questions[0].word, " sat.");

  const LastWordTally unigram = evaluate_last_words(*unigram_model(), Tokenizer(), questions, {});
  EXPECT_EQ(unigram.acc.sum, 0) << "greedy decoding writes spaces: as likely as 'a', and first";
  EXPECT_NEAR(unigram.log_likelihood.sum, known_log_p(" sat.") + known_log_p(" a") + known_log_p(" bc"), 1e-4);
}

TEST(LastWords, ACertainModelIsRight) {
  const auto model = circle_model("sat,on ");
  const LastWordTally found =
      evaluate_last_words(*model, Tokenizer(), {{"", "on", " sat,on"}, {"", "n", " sad"}, {"", "sat", " on"}}, {});
  EXPECT_EQ(found.acc.sum, 1);
  EXPECT_NEAR(evaluate_last_words(*model, Tokenizer(), {{"", "on", " sat,on"}}, {}).log_likelihood.mean(), 0, 1e-3);
}

TEST(Questions, RefusesDamagedLines) {
  const TemporaryFolder folder;
  const std::string good = R"({"context": "a", "choices": ["b", "c"], "label": 0})";
  const auto choice = [&](const std::string& line) {
    write_bytes(folder / "q", good + "\n" + line + "\n");
    return message_of(ErrorKind::input, [&] { (void)read_choice_questions(folder / "q"); });
  };
  for (const auto& [line, message] : std::map<std::string, std::string>{
           {R"({"context": "a")", "line 2: damaged JSON"},
           {R"(["a"])", "line 2: not a JSON object"},
           {R"({"choices": ["b", "c"], "label": 0})", "line 2: no field 'context'"},
           {R"({"context": 1, "choices": ["b", "c"], "label": 0})", "line 2: field 'context' is not text"},
           {R"({"context": "a", "choices": "b", "label": 0})", "line 2: field 'choices' is not a list"},
           {R"({"context": "a", "choices": ["b"], "label": 0})", "line 2: fewer than two choices"},
           {R"({"context": "a", "choices": ["b", ""], "label": 0})", "line 2: a choice is empty or not text"},
           {R"({"context": "a", "choices": ["b", 2], "label": 0})", "line 2: a choice is empty or not text"},
           {R"({"context": "a", "choices": ["b", "c"], "label": 2})", "line 2: label 2 is none of the 2 choices"},
           {R"({"context": "a", "choices": ["b", "c"], "label": -1})", "line 2: label -1 is none of the 2 choices"},
           {R"({"context": "a", "choices": ["b", "c"], "label": "0"})", "line 2: field 'label' is not a whole number"}}) {
    EXPECT_THAT(choice(line), HasSubstr((folder / "q").string() + ": " + message)) << line;
  }
  const auto last_word = [&](const std::string& text) {
    write_bytes(folder / "q", text);
    return message_of(ErrorKind::input, [&] { (void)read_last_word_questions(folder / "q"); });
  };
  EXPECT_THAT(last_word("{\"text\": \" alone \"}"), HasSubstr("line 1: the text has no word before its last"));
  EXPECT_THAT(last_word("{\"text\": \"\"}"), HasSubstr("line 1: the text has no word before its last"));
  EXPECT_THAT(last_word("\n \n"), HasSubstr("q: holds no question"));
  EXPECT_THAT(message_of(ErrorKind::input, [&] { (void)read_choice_questions(folder / "none"); }),
              HasSubstr("none: cannot be read"));
}

TEST(Validation, IsTheMeanOverTheTrainersWindows) {
  const TemporaryFolder folder;
  prepare({.output = folder / "t.bin", .synthetic_bytes = 1 << 20});
  const TokenFile tokens = TokenFile::open(folder / "t.bin");
  const auto model = unigram_model();
  constexpr std::int64_t length = 13;

  const Tally whole = evaluate_validation(*model, tokens, length, -1, {});
  const std::int64_t windows = tokens.validation().size() / (length + 1);
  ASSERT_GT(windows, 2048 / length) << "several batches are needed";
  EXPECT_EQ(whole.count, static_cast<double>(windows * length));
  double expected = 0;  // every token but the first of each window
  for (std::int64_t i = 0; i < windows * (length + 1); ++i) {
    if (i % (length + 1) != 0) expected -= known_log_p(static_cast<unsigned char>(tokens.validation()[i]));
  }
  EXPECT_NEAR(whole.mean(), expected / whole.count, 2e-5);  // fp32 losses

  // What a trainer with global_batch 4 sees in two batches.
  const TokenStream stream(tokens, Split::validation, {.sequence_length = length, .global_batch = 4}, 0, 1);
  double loss = 0;
  for (std::int64_t i = 0; i < 2; ++i) {
    Ids inputs(4 * length), targets(4 * length);
    stream.batch(i, 0, 4, inputs, targets);
    loss += model->evaluate({span_of(inputs), span_of(targets), 4, length}, Stream()) / 2;
  }
  const Tally some = evaluate_validation(*model, tokens, length, 8, {});
  EXPECT_EQ(some.count, 8 * length);
  EXPECT_NEAR(some.mean(), loss, 2e-5);
  EXPECT_EQ(evaluate_validation(*model, tokens, length, windows + 1, {}).count, whole.count);

  double count = 0;
  double sum = 0;
  for (const int rank : {0, 1, 2}) {
    const Tally part = evaluate_validation(*model, tokens, length, -1, {rank, 3});
    EXPECT_GT(part.count, 0);
    count += part.count;
    sum += part.sum;
  }
  EXPECT_EQ(count, whole.count);
  EXPECT_NEAR(sum / count, whole.mean(), 1e-12);
}

TEST(Generate, ChoosesAsTold) {
  const Floats logits{0, 2, 1, 2};
  EXPECT_EQ(choose_token(logits, {.temperature = 0}, 0.99), 1) << "of two the lower id";
  // In the order 1, 3, 2, 0 with weights e², e², e, 1.
  const double sum = 2 * std::exp(2) + std::exp(1) + 1;
  const SamplingOptions all{.temperature = 1};
  EXPECT_EQ(choose_token(logits, all, 0), 1);
  EXPECT_EQ(choose_token(logits, all, std::exp(2) / sum + 1e-9), 3);
  EXPECT_EQ(choose_token(logits, all, 2 * std::exp(2) / sum - 1e-9), 3);
  EXPECT_EQ(choose_token(logits, all, 2 * std::exp(2) / sum + 1e-9), 2);
  EXPECT_EQ(choose_token(logits, all, 0.99999), 0);
  EXPECT_EQ(choose_token(logits, {.temperature = 1, .top_k = 2}, 0.99999), 3);
  EXPECT_EQ(choose_token(logits, {.temperature = 1, .top_k = 9}, 0.99999), 0);
  EXPECT_EQ(choose_token(logits, {.temperature = 0.05}, 0.99999), 3) << "cold";
  EXPECT_THAT(message_of(ErrorKind::input, [] { (void)choose_token(Floats{0, NAN}, {}, 0); }), HasSubstr("not finite"));
}

TEST(Generate, WritesWhatTheModelKnows) {
  const auto model = circle_model("sat,on ");
  const Tokenizer bytes;
  const auto write = [&](const char* prompt, const SamplingOptions& options, std::int32_t end = -1) {
    return bytes.decode(generate(*model, bytes.encode(prompt), end, options));
  };
  EXPECT_EQ(write("s", {.tokens = 30, .temperature = 0}), "at,on sat,on sat,on sat,on sat") << "longer than the context of 16";
  EXPECT_EQ(write("a prompt longer than the context s", {.tokens = 3, .temperature = 0}), "at,");
  EXPECT_EQ(write("s", {.tokens = 30, .temperature = 0}, 'n'), "at,o");
  const SamplingOptions hot{.tokens = 40, .temperature = 8, .seed = 5};
  EXPECT_EQ(write("s", hot), write("s", hot));
  SamplingOptions other = hot;
  other.seed = 6;
  EXPECT_NE(write("s", hot), write("s", other));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { write("", {}); }), HasSubstr("the prompt has no token"));
  EXPECT_THAT(message_of(ErrorKind::usage, [] { validate({.tokens = 0}); }), HasSubstr("tokens to write must be at least 1"));
  EXPECT_THAT(message_of(ErrorKind::usage, [] { validate({.temperature = -1}); }), HasSubstr("temperature"));
  EXPECT_THAT(message_of(ErrorKind::usage, [] { validate({.top_k = -1}); }), HasSubstr("top-k"));
}

}  // namespace
}  // namespace scape
