// Sampling in-edges, and numbering what was sampled. Draws are hashes of a key and global ids, so that they do not
// depend on threads, workers or order.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "bind.h"
#include "gather.h"
#include "hash.h"

namespace weft {
namespace {

constexpr int64_t kSerialRows = 2048;  // fewer are not worth waking threads for
constexpr int64_t kFloydMost = 64;     // above, one walk over the edges is cheaper than searching what was drawn
constexpr int64_t kGroup = 32;         // rows whose edges are asked for before they are read
constexpr int kAhead = 16;             // entries of a table that are asked for before they are needed

enum Method : int { kNeighbour = 0, kWeighted = 1, kLabor = 2, kLast = 3 };

struct Rows {
    const int64_t *indptr;
    const int32_t *indices;  // columns
    const float *weight;     // may be null
    const int64_t *row_ids;  // global id of every row
    const int64_t *col_ids;  // global id of every column
};

uint64_t bounded(uint64_t random, uint64_t bound) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(random) * bound >> 64);
}

double unit(uint64_t random) { return static_cast<double>((random >> 11) + 1) * 0x1.0p-53; }  // in (0, 1]

// k of d numbers without repetition. Every subset is as likely as any other.
void draw(uint64_t key, int64_t degree, int64_t k, int64_t *drawn) {
    if (k > kFloydMost) {
        int64_t found = 0;
        for (int64_t at = 0; found < k; at++)
            if (bounded(splitmix64(key + static_cast<uint64_t>(at)), degree - at) < static_cast<uint64_t>(k - found))
                drawn[found++] = at;
        return;
    }
    for (int64_t count = 0; count < k; count++) {  // Floyd: of the first `last + 1` numbers, one that is new
        const int64_t last = degree - k + count;
        const int64_t pick = static_cast<int64_t>(bounded(splitmix64(key + static_cast<uint64_t>(count)), last + 1));
        bool taken = false;
        for (int64_t at = 0; at < count; at++) taken |= drawn[at] == pick;
        drawn[count] = taken ? last : pick;  // nothing that was drawn is as large as the last
    }
}

// An edge of weight w is to be drawn with probability min(1, w / interval), so that k are drawn in all. 0: no more than
// k have a positive weight, all of which are taken. Sums go from the first edge to the last.
double sampling_interval(const float *weight, int64_t degree, int64_t k) {
    double rest = 0.0, heaviest = 0.0;
    int64_t positive = 0, certain = 0;
    for (int64_t at = 0; at < degree; at++) {
        const double value = weight[at];
        if (!(value > 0)) continue;
        rest += value;
        heaviest = std::max(heaviest, value);
        positive++;
    }
    if (positive <= k) return 0.0;
    double interval = rest / static_cast<double>(k);
    while (heaviest >= interval) {  // those that weigh so much are certain; the others share the remaining draws
        int64_t above = 0;
        rest = 0.0;
        for (int64_t at = 0; at < degree; at++) {
            const double value = weight[at];
            if (!(value > 0)) continue;
            if (value >= interval)
                above++;
            else
                rest += value;
        }
        if (above == certain || above >= k) break;
        certain = above;
        interval = rest / static_cast<double>(k - certain);
    }
    return interval;
}

// k edges, each with its probability (Deville and Tille's pivotal method). Edges are visited in order. One of them is
// in play; its mass is its share of an interval. A random number decides whether it or the next edge goes on with the
// mass of both and, where that is an interval or more, which of the two is drawn.
void draw_weighted(uint64_t key, const float *weight, int64_t degree, int64_t k, double interval, int64_t *drawn) {
    int64_t found = 0, playing = -1;
    double mass = 0.0;
    for (int64_t at = 0; at < degree && found < k; at++) {
        const double value = weight[at];
        if (!(value > 0)) continue;
        if (value >= interval) {
            drawn[found++] = at;
            continue;
        }
        if (playing < 0) {
            playing = at;
            mass = value;
            continue;
        }
        const double random = unit(splitmix64(key + static_cast<uint64_t>(at)));
        if (mass + value < interval) {
            mass += value;
            if (random * mass <= value) playing = at;
            continue;
        }
        const double before = interval - value, after = interval - mass;
        const bool first = random * (before + after) <= before;
        drawn[found++] = first ? playing : at;
        if (first) playing = at;
        mass = mass + value - interval;
    }
    if (found < k && playing >= 0) drawn[found++] = playing;  // the last interval may lack a rounding error
    std::sort(drawn, drawn + found);
}

int64_t positive(const float *weight, int64_t degree) {
    int64_t count = 0;
    for (int64_t at = 0; at < degree; at++) count += weight[at] > 0;
    return count;
}

struct Sample {
    Rows graph;
    const int32_t *rows;      // which rows, all minibatches' one after another
    const int64_t *bounds;    // where each minibatch's begin, [K + 1]
    const uint64_t *keys;     // of each minibatch, for this hop
    int64_t batches;
    int64_t fanout;           // negative: all
    int method;
    int threads;
    const int32_t *degrees;   // how many of each row's first edges are drawn from; null: all
    const uint64_t *salts;    // tell draws of the same row apart, where degrees are given
};

uint64_t row_key(const Sample &s, int64_t batch, int64_t i) {
    const uint64_t key = splitmix64(s.keys[batch] ^ static_cast<uint64_t>(s.graph.row_ids[s.rows[i]]));
    return s.salts == nullptr ? key : splitmix64(key ^ s.salts[i]);
}

// A source is taken by all rows that reach it with their share of k out of d, or by none: they draw the same number.
template <class Take>
void each_taken(const Sample &s, int64_t batch, const int32_t *from, int64_t degree, Take &&take) {
    const double threshold = static_cast<double>(s.fanout) / static_cast<double>(degree);
    for (int64_t at = 0; at < degree; at++)
        if (unit(splitmix64(s.keys[batch] ^ static_cast<uint64_t>(s.graph.col_ids[from[at]]))) <= threshold) take(at);
}

// Which of a row's edges are taken, where not all are.
void draw_row(const Sample &s, int64_t batch, int64_t i, int64_t begin, int64_t degree, int64_t count,
              const double *intervals, int64_t *drawn) {
    if (s.method == kLabor)
        each_taken(s, batch, s.graph.indices + begin, degree,
                   [drawn, found = int64_t{0}](int64_t at) mutable { drawn[found++] = at; });
    else if (s.method == kLast)
        std::iota(drawn, drawn + count, degree - count);
    else if (s.method == kWeighted)
        draw_weighted(row_key(s, batch, i), s.graph.weight + begin, degree, count, intervals[i], drawn);
    else
        draw(row_key(s, batch, i), degree, count, drawn);
}

// Where each row's edges begin and how many it has, and how many it keeps: summed up, indptr[0] being 0. By weight also
// each row's sampling interval.
void count_sampled(const Sample &s, int64_t *begins, int32_t *degrees, int64_t *indptr, double *intervals) {
    for (int64_t batch = 0; batch < s.batches; batch++) {
        const int64_t first = s.bounds[batch], end = s.bounds[batch + 1];
        const bool serial = end - first < kSerialRows;
#pragma omp parallel for schedule(static) num_threads(serial ? 1 : s.threads)
        for (int64_t i = first; i < end; i++) {
            if (i + kAhead < end) __builtin_prefetch(s.graph.indptr + s.rows[i + kAhead]);
            const int64_t begin = s.graph.indptr[s.rows[i]];
            const int64_t degree = s.degrees == nullptr ? s.graph.indptr[s.rows[i] + 1] - begin : s.degrees[i];
            int64_t count = degree;
            if (s.method == kWeighted) intervals[i] = 0.0;
            if (s.fanout >= 0 && degree > s.fanout) {
                count = s.fanout;
                if (s.method == kWeighted) {
                    intervals[i] = sampling_interval(s.graph.weight + begin, degree, s.fanout);
                    if (intervals[i] == 0.0) count = positive(s.graph.weight + begin, degree);
                } else if (s.method == kLabor) {
                    count = 0;
                    each_taken(s, batch, s.graph.indices + begin, degree, [&](int64_t) { count++; });
                }
            }
            begins[i] = begin;
            degrees[i] = static_cast<int32_t>(degree);
            indptr[i + 1] = count;
        }
    }
    indptr[0] = 0;
    for (int64_t i = 0; i < s.bounds[s.batches]; i++) indptr[i + 1] += indptr[i];
}

// The sampled edges of row i, at indptr[i]: their columns, and where they stand among all edges if that is wanted.
// Rows go in groups: first it is drawn which of their edges are taken, and those are asked for; then they are read.
void fill_sampled(const Sample &s, const int64_t *begins, const int32_t *degrees, const int64_t *indptr,
                  const double *intervals, int32_t *columns, int64_t *positions) {
    for (int64_t batch = 0; batch < s.batches; batch++) {
        const int64_t first = s.bounds[batch], end = s.bounds[batch + 1];
        const int64_t groups = (end - first + kGroup - 1) / kGroup;
        const bool serial = end - first < kSerialRows;
#pragma omp parallel num_threads(serial ? 1 : s.threads)
        {
            std::vector<int64_t> drawn(kFloydMost);
#pragma omp for schedule(static)
            for (int64_t group = 0; group < groups; group++) {
                const int64_t low = first + group * kGroup, high = std::min(low + kGroup, end);
                for (int64_t i = low; i < high; i++) {
                    if (i + kAhead / 2 < end) __builtin_prefetch(s.graph.row_ids + s.rows[i + kAhead / 2]);
                    const int64_t count = indptr[i + 1] - indptr[i];
                    const int32_t *from = s.graph.indices + begins[i];
                    if (count == degrees[i]) {
                        for (int64_t at = 0; at < count; at += 16) __builtin_prefetch(from + at);
                        continue;
                    }
                    if (static_cast<int64_t>(drawn.size()) < count) drawn.resize(count);
                    draw_row(s, batch, i, begins[i], degrees[i], count, intervals, drawn.data());
                    for (int64_t at = 0; at < count; at++) {
                        __builtin_prefetch(from + drawn[at]);
                        columns[indptr[i] + at] = static_cast<int32_t>(drawn[at]);
                    }
                }
                for (int64_t i = low; i < high; i++) {
                    const int32_t *from = s.graph.indices + begins[i];
                    const bool all = indptr[i + 1] - indptr[i] == degrees[i];
                    for (int64_t at = indptr[i]; at < indptr[i + 1]; at++) {
                        const int64_t taken = all ? at - indptr[i] : columns[at];
                        if (positions != nullptr) positions[at] = begins[i] + taken;
                        columns[at] = from[taken];
                    }
                }
            }
        }
    }
}

// Numbers vertices in the order in which they first appear. `table` has one entry per vertex, negative for those that
// have no number; `nodes` holds those that have one, and has room for all that may come and one more.
int64_t number_new(int32_t *table, int32_t *nodes, int64_t known, const int32_t *ends, int64_t edges,
                   int32_t *columns) {
    int64_t count = known;
    for (int64_t at = 0; at < edges; at++) {
        if (at + 2 * kAhead < edges) __builtin_prefetch(table + ends[at + 2 * kAhead], 1);
        int32_t &entry = table[ends[at]];
        const bool fresh = entry < 0;  // as good as random, so nothing branches on it
        entry = fresh ? static_cast<int32_t>(count) : entry;
        columns[at] = entry;
        nodes[count] = ends[at];
        count += fresh;
    }
    return count;
}

void number_known(int32_t *table, const int32_t *nodes, int64_t count) {
    for (int64_t at = 0; at < count; at++) table[nodes[at]] = static_cast<int32_t>(at);
}

void forget(int32_t *table, const int32_t *nodes, int64_t count) {
    for (int64_t at = 0; at < count; at++) table[nodes[at]] = -1;
}

// Where each vertex's row is: own rows by themselves, others by the slot that `table` has or now gets (from `slots`
// on; negative entries have none). Vertices that got one are written to `fetched`. Own vertices are stamped with a
// negative number. Returns how many slots are new, and how many own vertices had another stamp before.
std::tuple<int64_t, int64_t> find_slots(int32_t *table, const int32_t *nodes, int64_t count, int64_t own_start,
                                        int64_t own_end, int64_t slots, int32_t stamp, int32_t *where,
                                        int32_t *fetched) {
    const int64_t own = own_end - own_start;
    int64_t more = 0, stamped = 0;
    for (int64_t at = 0; at < count; at++) {
        if (at + kAhead < count) __builtin_prefetch(table + nodes[at + kAhead], 1);
        const int64_t node = nodes[at];
        int32_t &entry = table[node];
        if (node >= own_start && node < own_end) {
            where[at] = static_cast<int32_t>(node - own_start);
            stamped += entry != stamp;
            entry = stamp;
            continue;
        }
        if (entry < 0) {
            entry = static_cast<int32_t>(slots + more);
            fetched[more++] = static_cast<int32_t>(node);
        }
        where[at] = static_cast<int32_t>(own + entry);
    }
    return {more, stamped};
}

// Rows out of three places that follow one another in the numbering of `where`.
void gather_places(const char *const *places, const int64_t *starts, const int32_t *where, int64_t count,
                   int64_t row_bytes, char *out, int threads) {
    const auto at_row = [=](int64_t k) {
        const int place = (where[k] >= starts[1]) + (where[k] >= starts[2]);
        return places[place] + (where[k] - starts[place]) * row_bytes;
    };
    gather_rows(at_row, count, row_bytes, out, threads);
}

// Two sides' edges in one row each, ascending by the id of their source, as they do on either side; columns of the
// second side follow those of the first. `order` says where each edge stood, the second side after the `before` edges
// of the first. Rows from begin to end.
void merge_sides(const int64_t *first_start, const int32_t *first, const int64_t *second_start, const int32_t *second,
                 int64_t begin, int64_t end, int64_t before, int64_t first_columns, const int64_t *ids, int32_t *out,
                 int64_t *order, int threads) {
#pragma omp parallel for schedule(dynamic, 1024) num_threads(threads)
    for (int64_t row = begin; row < end; row++) {
        int64_t a = first_start[row], b = second_start[row];
        for (int64_t at = a + b; at < first_start[row + 1] + second_start[row + 1]; at++) {
            const bool from_first =
                b == second_start[row + 1] ||
                (a < first_start[row + 1] && ids[first[a]] <= ids[first_columns + second[b]]);
            if (order != nullptr) order[at] = from_first ? a : before + b;
            out[at] = from_first ? first[a++] : static_cast<int32_t>(first_columns + second[b++]);
        }
    }
}

// A loop first in every row, edges from a row to itself left out. Weights: those of the loops, and of the others.
int64_t with_loops(const int64_t *indptr, const int32_t *indices, const double *weight, const double *loop_weight,
                   int64_t rows, int64_t *out_indptr, int32_t *out_indices, double *out_weight) {
    int64_t count = 0;
    out_indptr[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (out_weight != nullptr) out_weight[count] = loop_weight == nullptr ? 1.0 : loop_weight[row];
        out_indices[count++] = static_cast<int32_t>(row);
        for (int64_t k = indptr[row]; k < indptr[row + 1]; k++) {
            if (indices[k] == row) continue;
            if (out_weight != nullptr) out_weight[count] = weight == nullptr ? 1.0 : weight[k];
            out_indices[count++] = indices[k];
        }
        out_indptr[row + 1] = count;
    }
    return count;
}

// Edges from columns before a border and from those after it, which are counted from there; where each edge stood.
struct Side {
    int64_t *indptr;
    int32_t *indices;
    int64_t *stood;
};

void split_columns(const int64_t *indptr, const int32_t *indices, int64_t rows, int32_t border, Side before, Side after) {
    int64_t first = 0, second = 0;
    before.indptr[0] = after.indptr[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t k = indptr[row]; k < indptr[row + 1]; k++) {
            // both are written, one is kept: which of them cannot be foreseen
            const int32_t column = indices[k];
            const bool here = column < border;
            before.indices[first] = column;
            after.indices[second] = column - border;
            if (before.stood != nullptr) before.stood[first] = after.stood[second] = k;
            first += here;
            second += !here;
        }
        before.indptr[row + 1] = first;
        after.indptr[row + 1] = second;
    }
}

}  // namespace

void bind_sampling(nb::module_ &module) {
    const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
    typedef std::tuple<Pointer, Pointer, Pointer, Pointer, Pointer> Graph;
    typedef std::tuple<Pointer, Pointer> First;
    const auto sample_of = [](const Graph &graph, Pointer rows, Pointer bounds, Pointer keys, int64_t batches,
                              int64_t fanout, int method, const First &first, int threads) {
        auto [indptr, indices, weight, row_ids, col_ids] = graph;
        const Rows from = {as<const int64_t>(indptr), as<const int32_t>(indices), as<const float>(weight),
                           as<const int64_t>(row_ids), as<const int64_t>(col_ids)};
        return Sample{from,
                      as<const int32_t>(rows),
                      as<const int64_t>(bounds),
                      as<const uint64_t>(keys),
                      batches,
                      fanout,
                      method,
                      threads,
                      as<const int32_t>(std::get<0>(first)),
                      as<const uint64_t>(std::get<1>(first))};
    };
    module.def(
        "count_sampled",
        [=](Graph graph, Pointer rows, Pointer bounds, Pointer keys, int64_t batches, int64_t fanout, int method,
            First first, Pointer begins, Pointer degrees, Pointer indptr, Pointer intervals, int threads) {
            count_sampled(sample_of(graph, rows, bounds, keys, batches, fanout, method, first, threads), as<int64_t>(begins),
                          as<int32_t>(degrees), as<int64_t>(indptr), as<double>(intervals));
        },
        unlocked);
    module.def(
        "fill_sampled",
        [=](Graph graph, Pointer rows, Pointer bounds, Pointer keys, int64_t batches, int64_t fanout, int method,
            First first, Pointer begins, Pointer degrees, Pointer indptr, Pointer intervals, Pointer columns, Pointer positions,
            int threads) {
            fill_sampled(sample_of(graph, rows, bounds, keys, batches, fanout, method, first, threads),
                         as<const int64_t>(begins), as<const int32_t>(degrees), as<const int64_t>(indptr),
                         as<const double>(intervals), as<int32_t>(columns), as<int64_t>(positions));
        },
        unlocked);
    module.def(
        "number_new",
        [](Pointer table, Pointer nodes, int64_t known, Pointer ends, int64_t edges, Pointer columns) {
            return number_new(as<int32_t>(table), as<int32_t>(nodes), known, as<const int32_t>(ends), edges,
                              as<int32_t>(columns));
        },
        unlocked);
    module.def(
        "number_known",
        [](Pointer table, Pointer nodes, int64_t count) {
            number_known(as<int32_t>(table), as<const int32_t>(nodes), count);
        },
        unlocked);
    module.def(
        "forget",
        [](Pointer table, Pointer nodes, int64_t count) {
            forget(as<int32_t>(table), as<const int32_t>(nodes), count);
        },
        unlocked);
    module.def(
        "find_slots",
        [](Pointer table, Pointer nodes, int64_t count, int64_t own_start, int64_t own_end, int64_t slots,
           int32_t stamp, Pointer where, Pointer fetched) {
            return find_slots(as<int32_t>(table), as<const int32_t>(nodes), count, own_start, own_end, slots, stamp,
                              as<int32_t>(where), as<int32_t>(fetched));
        },
        unlocked);
    module.def(
        "gather_places",
        [](Pointer own, int64_t num_own, Pointer cache, int64_t num_cached, Pointer fetched, Pointer where,
           int64_t count, int64_t row_bytes, Pointer out, int threads) {
            const char *places[] = {as<const char>(own), as<const char>(cache), as<const char>(fetched)};
            const int64_t starts[] = {0, num_own, num_own + num_cached};
            gather_places(places, starts, as<const int32_t>(where), count, row_bytes, as<char>(out), threads);
        },
        unlocked);
    module.def(
        "merge_sides",
        [](Pointer first_start, Pointer first, Pointer second_start, Pointer second, int64_t begin, int64_t end,
           int64_t before, int64_t first_columns, Pointer ids, Pointer out, Pointer order, int threads) {
            merge_sides(as<const int64_t>(first_start), as<const int32_t>(first), as<const int64_t>(second_start),
                        as<const int32_t>(second), begin, end, before, first_columns, as<const int64_t>(ids),
                        as<int32_t>(out), as<int64_t>(order), threads);
        },
        unlocked);
    module.def(
        "with_loops",
        [](Pointer indptr, Pointer indices, Pointer weight, Pointer loop_weight, int64_t rows, Pointer out_indptr,
           Pointer out_indices, Pointer out_weight) {
            return with_loops(as<const int64_t>(indptr), as<const int32_t>(indices), as<const double>(weight),
                              as<const double>(loop_weight), rows, as<int64_t>(out_indptr), as<int32_t>(out_indices),
                              as<double>(out_weight));
        },
        unlocked);
    typedef std::tuple<Pointer, Pointer, Pointer> SidePointers;
    module.def(
        "split_columns",
        [](Pointer indptr, Pointer indices, int64_t rows, int32_t border, SidePointers before, SidePointers after) {
            const auto side = [](const SidePointers &at) {
                return Side{as<int64_t>(std::get<0>(at)), as<int32_t>(std::get<1>(at)), as<int64_t>(std::get<2>(at))};
            };
            split_columns(as<const int64_t>(indptr), as<const int32_t>(indices), rows, border, side(before),
                          side(after));
        },
        unlocked);
}

}  // namespace weft
