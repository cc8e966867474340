// scape evaluate: what a trained model knows, on one rank or shared among several.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>

#include "commands.hpp"
#include "evaluate/evaluate.hpp"
#include "exchange/saved_model.hpp"
#include "io/file.hpp"
#include "ops/threads.hpp"
#include "progress_bar.hpp"
#include "ranks.hpp"
#include "scape/communicator.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

constexpr std::string_view json_head = "{\n  \"checkpoint\": ";

struct Arguments {
  std::string checkpoint, data, tokenizer, json;
  std::vector<std::string> choices, lambada;
  std::int64_t batches = -1;
};

// One line of the table.
struct Result {
  std::string task;    // "validation", "choices", "lambada"
  std::string source;  // the file
  std::string metric;
  Tally tally;
  double skipped = 0;       // items that cannot be scored
  bool perplexity = false;  // exp(mean) or exp(−mean) instead of the mean
  double sign = 1;

  [[nodiscard]] double value() const { return perplexity ? std::exp(sign * tally.mean()) : tally.mean(); }
  // Of an exponential to first order (the delta method).
  [[nodiscard]] double standard_error() const { return perplexity ? value() * tally.standard_error() : tally.standard_error(); }
};

struct Evaluation {
  std::string checkpoint;
  std::int64_t step = 0;
  std::vector<Result> results;

  // This process's part of everything. Nothing in here is collective.
  Evaluation(const Arguments& arguments, const Share& mine) {
    const SavedModel saved = SavedModel::open(arguments.checkpoint);
    checkpoint = saved.checkpoint.folder().string();
    step = saved.checkpoint.info().step;
    const bool validates = arguments.batches != 0 && !(arguments.data.empty() && saved.option("data").empty());
    const bool asks = !arguments.choices.empty() || !arguments.lambada.empty();
    require(validates || asks, ErrorKind::usage, "nothing to evaluate: give --data, --choices or --lambada");
    std::optional<TokenFile> tokens;
    std::optional<Tokenizer> tokenizer;
    if (validates) tokens = saved.tokens(arguments.data);
    if (asks) tokenizer = saved.tokenizer(arguments.tokenizer, arguments.data);
    std::vector<std::vector<ChoiceQuestion>> choices;
    std::vector<std::vector<LastWordQuestion>> last_words;
    for (const std::string& file : arguments.choices) choices.push_back(read_choice_questions(file));
    for (const std::string& file : arguments.lambada) last_words.push_back(read_last_word_questions(file));
    const std::unique_ptr<Model> model = saved.load();

    const auto shown = [&](ProgressBar& bar) {
      Share share = mine;
      if (mine.rank == 0) share.progress = [&bar](std::int64_t done, std::int64_t total) { bar.show(done, total, done); };
      return share;
    };
    if (validates) {
      const std::int64_t windows = arguments.batches < 0 ? -1 : arguments.batches * saved.number("global_batch", 1);
      const std::int64_t length = saved.number("sequence_length", saved.config.context);
      ProgressBar bar("batches/s", 1);
      const Tally loss = evaluate_validation(*model, *tokens, length, windows, shown(bar));
      const std::string source = tokens->path().string();
      results.push_back({"validation", source, "loss", loss});
      results.push_back({"validation", source, "perplexity", loss, 0, true});
    }
    for (std::size_t i = 0; i < choices.size(); ++i) {
      ProgressBar bar("questions/s", 1);
      const ChoiceTally found = evaluate_choices(*model, *tokenizer, choices[i], shown(bar));
      const auto skipped = static_cast<double>(found.skipped);
      results.push_back({"choices", arguments.choices[i], "acc", found.acc, skipped});
      results.push_back({"choices", arguments.choices[i], "acc_norm", found.acc_norm, skipped});
    }
    for (std::size_t i = 0; i < last_words.size(); ++i) {
      ProgressBar bar("texts/s", 1);
      const LastWordTally found = evaluate_last_words(*model, *tokenizer, last_words[i], shown(bar));
      const auto skipped = static_cast<double>(found.skipped);
      results.push_back({"lambada", arguments.lambada[i], "acc", found.acc, skipped});
      results.push_back({"lambada", arguments.lambada[i], "perplexity", found.log_likelihood, skipped, true, -1});
    }
  }

  // Collective.
  void add_up() {
    for (Result& result : results) {
      MPI_Allreduce(MPI_IN_PLACE, &result.tally, 3, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      MPI_Allreduce(MPI_IN_PLACE, &result.skipped, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
  }

  void print() const {
    fmt::print("{} (step {})\n{:12}{:12}{:>12}{:>12}{:>12}  {}\n", checkpoint, step, "task", "metric", "value", "std. error",
               "items", "source");
    for (const Result& r : results) {
      const double error = r.task == "validation" ? NAN : r.standard_error();
      fmt::print("{:12}{:12}{:12.6g}{:>12}{:>12.0f}  {}{}\n", r.task, r.metric, r.value(),
                 std::isnan(error) ? "" : fmt::format("{:.3g}", error), r.tally.count, r.source,
                 r.skipped > 0 ? fmt::format(" ({:.0f} skipped)", r.skipped) : "");
    }
  }

  [[nodiscard]] std::string json() const {
    const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; };
    std::string rows;
    for (const Result& r : results) {
      rows += fmt::format(
          "{}\n    {{\"task\": \"{}\", \"source\": {}, \"metric\": \"{}\", \"value\": {}, \"standard_error\": {}, \"items\": {}, "
          "\"skipped\": {}}}",
          rows.empty() ? "" : ",", r.task, json_string(r.source), r.metric, number(r.value()),
          number(r.task == "validation" ? NAN : r.standard_error()), number(r.tally.count), r.skipped);
    }
    return fmt::format("{}{},\n  \"step\": {},\n  \"results\": [{}\n  ]\n}}\n", json_head, json_string(checkpoint), step, rows);
  }
};

int run_evaluate(const Arguments& arguments, int argc, char** argv) {
  const MpiSession mpi(argc, argv);
  Share share;
  MPI_Comm_rank(MPI_COMM_WORLD, &share.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &share.ranks);
  const NodeShare node;
  if (std::getenv("OMP_NUM_THREADS") == nullptr) ops::set_threads(node.threads(), Stream());
  std::optional<Evaluation> evaluation;
  const int status = on_all_ranks("scape evaluate", [&] {
    if (share.rank == 0 && !arguments.json.empty()) expect_own_kind(arguments.json, json_head, "a file of earlier results");
    evaluation.emplace(arguments, share);
  });
  if (status != 0) return status;
  evaluation->add_up();
  return on_all_ranks("scape evaluate", [&] {
    if (share.rank != 0) return;
    evaluation->print();
    if (!arguments.json.empty()) write_text(arguments.json, evaluation->json());
  });
}

}  // namespace

void add_evaluate_command(CLI::App& app, Action& action, int argc, char** argv) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("evaluate", "validation loss, questions with choices, last words (with mpirun: the ranks share the work)");
  command->add_option("checkpoint", arguments->checkpoint, "checkpoint, or folder of them: the last one")->required();
  command->add_option("--data", arguments->data, "tokens to validate on (default: the run's)");
  command
      ->add_option("--batches", arguments->batches,
                   "validate on so many batches of the run's global_batch (imported: 1); 0: none; default: all of the split")
      ->check(at_least(0));
  command
      ->add_option("--choices", arguments->choices,
                   R"(JSON Lines of {"context", "choices": [...], "label": index}; may be repeated)")
      ->allow_extra_args(false);
  command->add_option("--lambada", arguments->lambada, R"(JSON Lines of {"text"}, whose last word is asked for; may be repeated)")
      ->allow_extra_args(false);
  command->add_option("--tokenizer", arguments->tokenizer, "bytes, or a SentencePiece model (default: what made the data)");
  command->add_option("--json", arguments->json, "file for the results; may exist only as one of earlier results");
  command->footer(
      "acc: the right choice has the largest log-likelihood behind its context; acc_norm: the largest divided by its bytes.\n"
      "A space goes between context and choice where there is no white space. lambada: greedy decoding writes the last word;\n"
      "perplexity is exp(-mean log-likelihood of that word). Text longer than the model's context is cut on the left;\n"
      "a question with a choice or last word that is longer by itself, or that adds no token, is skipped and counted.\n"
      "Validation predicts each token of a window from those before it there; what is left behind the last whole window is not\n"
      "seen. Items are tokens, questions, texts.");
  command->callback([arguments, &action, argc, argv] { action = [=] { return run_evaluate(*arguments, argc, argv); }; });
}

}  // namespace scape
