// What Sphinx's search adds to a result, by what was found; pages of history and figures come behind all others.
var Scorer = {
  score: ([page, title, anchor, text, score]) => (/^(CHANGELOG|CONTRIBUTING|benchmarks|docs\/decisions)/.test(page) ? score - 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
