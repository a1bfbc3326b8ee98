// Put before the search program of the site (scripts/site_reference.py): prepares what a user types.
// The program searches for every word as a prefix. So "how do I …" would match every word that starts with "do" or "i", and
// "running" would not find "run". Words without a meaning for the search are dropped, and endings are removed.
{
  const DROPPED = new Set(
    ("a about after all am an and any are as at be been but by can cannot could did do does doing for from get had has have he her his " +
      "how i if in into need needs needed possible is it its just let like made make makes may me might must my of on one or our own per please s she should so some " +
      "t than that the their them then there these they this to too up us use used uses using want was way we were what when " +
      "where which while who whom why will with without would you your outrider").split(" "),
  );
  // Words of almost every page count less than the others of a question.
  const COMMON = new Set(
    ("agent agents answer answers call calls change changed changes code command commands engine file files llm message messages model " +
      "models project server servers prompt prompts run running runs session sessions set step steps text tool tools turn turns value values work works").split(" "),
  );
  const stem = (word) => {
    if (word.length < 5 || /[^a-z]/.test(word)) return word;
    let short = word.replace(/(?:ations?|ings?|ers?|ed|ies|es|s|e|y)$/, "");
    if (short.length < 3) return word.replace(/s$/, "");
    if (/([bdgklmnprt])\1$/.test(short) && short.length > 3) short = short.slice(0, -1);
    return short.length < 4 && !/^(?:run|log|add|set|key|job|cut|put|end|ask)$/.test(short) ? word.replace(/s$/, "") : short;
  };
  const prepare = (query) => {
    if (/["+:~^*]/.test(query)) return query; // the syntax of the search is used on purpose
    const words = query.toLowerCase().replace(/['’]s\b/g, "").replace(/[?!,;()`…/]|-(?=[a-z])|\.(?=\s|$)/g, " ").split(/\s+/).filter(Boolean);
    const chosen = words.filter((word) => !DROPPED.has(word));
    if (!chosen.length) return query;
    const special = chosen.filter((word) => !COMMON.has(word)).length;
    // A whole word counts more than one that only starts with it: "post" is not "postgres".
    return chosen.map((word) => (special && !COMMON.has(word) ? `${word}^4 ${stem(word)}*^2` : stem(word))).join(" ");
  };
  const listen = self.addEventListener.bind(self);
  self.addEventListener = (type, handler, ...options) =>
    listen(
      type,
      (event) =>
        handler(
          type === "message" && event.data && event.data.type === 2
            ? { data: { ...event.data, data: prepare(event.data.data) } }
            : event,
        ),
      ...options,
    );
}
