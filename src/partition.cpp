// Communities for locality, streaming assignment, rebalancing. Everything here runs on one thread and draws
// nothing, so a result depends on its arguments alone.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "parts.h"

namespace nb = nanobind;

namespace {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using In2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
Out<T> give(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Out<T>(kept->data(), {kept->size()}, owner);
}

// Neighbours of every vertex in both directions, as two CSRs (one where the graph is symmetric).
struct Neighbours {
    int64_t rows = 0;
    const int64_t* in_start = nullptr;
    const int32_t* in = nullptr;
    const int32_t* in_weight = nullptr;  // none: every edge weighs 1
    std::vector<int64_t> out_start;      // empty: symmetric, the in-edges say everything
    std::vector<int32_t> out, out_weight;

    Neighbours(const int64_t* indptr, const int32_t* indices, int64_t rows_, const int32_t* weight = nullptr)
        : rows(rows_),
          in_start(indptr),
          in(indices),
          in_weight(weight),
          out_start(rows_ + 1, 0),
          out(indptr[rows_]),
          out_weight(weight ? indptr[rows_] : 0) {
        for (size_t k = 0; k < out.size(); ++k) ++out_start[in[k] + 1];
        for (int64_t v = 0; v < rows; ++v) out_start[v + 1] += out_start[v];
        std::vector<int64_t> next(out_start.begin(), out_start.end() - 1);
        for (int64_t v = 0; v < rows; ++v)
            for (int64_t k = in_start[v]; k < in_start[v + 1]; ++k) {
                const int64_t place = next[in[k]]++;
                out[place] = static_cast<int32_t>(v);
                if (weight) out_weight[place] = weight[k];
            }
        // Rows of `out` ascend; a symmetric graph whose rows do not is treated as directed, only slower.
        const bool same_degrees = std::equal(out_start.begin(), out_start.end(), in_start);
        const bool same_weights = !weight || std::equal(out_weight.begin(), out_weight.end(), weight);
        if (same_degrees && same_weights && std::equal(out.begin(), out.end(), in))
            out_start = {}, out = {}, out_weight = {};
    }

    template <class F>
    void each(int64_t v, F&& f) const {
        each_weighted(v, [&](int32_t u, int32_t) { f(u); });
    }

    template <class F>
    void each_weighted(int64_t v, F&& f) const {
        for (int64_t k = in_start[v]; k < in_start[v + 1]; ++k) f(in[k], in_weight ? in_weight[k] : 1);
        if (out_start.empty()) return;
        for (int64_t k = out_start[v]; k < out_start[v + 1]; ++k) f(out[k], in_weight ? out_weight[k] : 1);
    }

    int64_t degree(int64_t v) const {
        return in_start[v + 1] - in_start[v] + (out_start.empty() ? 0 : out_start[v + 1] - out_start[v]);
    }

    double weight(int64_t v) const {
        if (!in_weight) return static_cast<double>(degree(v));
        double sum = 0;
        each_weighted(v, [&](int32_t, int32_t w) { sum += w; });
        return sum;
    }
};

Neighbours checked(const In<int64_t>& indptr, const In<int32_t>& indices, const int32_t* weight = nullptr) {
    if (indptr.size() < 1) throw std::invalid_argument("indptr is empty");
    const int64_t rows = static_cast<int64_t>(indptr.size()) - 1;
    const int64_t edges = static_cast<int64_t>(indices.size());
    if (rows >= std::numeric_limits<int32_t>::max()) throw std::invalid_argument("too many vertices");
    const int64_t* start = indptr.data();
    if (start[0] != 0 || start[rows] != edges) throw std::invalid_argument("indptr does not span indices");
    for (int64_t v = 0; v < rows; ++v)
        if (start[v] > start[v + 1]) throw std::invalid_argument("indptr descends at " + std::to_string(v));
    for (int64_t k = 0; k < edges; ++k)
        if (indices.data()[k] < 0 || indices.data()[k] >= rows)
            throw std::invalid_argument("indices[" + std::to_string(k) + "] points outside");
    return Neighbours(start, indices.data(), rows, weight);
}

// ---------------------------------------------------------------------------------------------------------
// Communities. Vertices move to the neighbouring community with the largest gain in modularity (label
// propagation that a hub cannot win by degree alone) while it has room; then communities are contracted and
// the same happens among them with more room, so that the order has locality at every size of cache.

struct Weighted {  // a contracted graph, both directions stored
    std::vector<int64_t> start;
    std::vector<int32_t> to;
    std::vector<float> weight;
    std::vector<int32_t> size;   // vertices of the original graph
    std::vector<double> degree;  // sum of weights, inner edges included
};

template <class Each>
bool propagate(int64_t rows, Each&& each, const std::vector<int32_t>& size, const std::vector<double>& degree,
               int64_t room, int rounds, std::vector<int32_t>& label) {
    std::vector<int64_t> filled(size.begin(), size.end());
    std::vector<double> mass(degree);
    std::vector<float> count(rows, 0.f);
    std::vector<int32_t> met;
    const double total = std::max(1.0, std::accumulate(degree.begin(), degree.end(), 0.0));
    bool changed = false;
    for (int round = 0; round < rounds; ++round) {
        int64_t moved = 0;
        for (int64_t v = 0; v < rows; ++v) {
            met.clear();
            each(v, [&](int32_t u, float w) {
                if (u == v) return;
                const int32_t l = label[u];
                if (count[l] == 0.f) met.push_back(l);
                count[l] += w;
            });
            const int32_t own = label[v];
            const double share = degree[v] / total;
            int32_t best = own;
            double best_gain = count[own] - share * (mass[own] - degree[v]);
            for (int32_t l : met) {
                if (l == own || filled[l] + size[v] > room) continue;
                const double gain = count[l] - share * mass[l];
                if (gain > best_gain) best_gain = gain, best = l;
            }
            for (int32_t l : met) count[l] = 0.f;
            if (best != own) {
                filled[own] -= size[v], filled[best] += size[v];
                mass[own] -= degree[v], mass[best] += degree[v];
                label[v] = best;
                ++moved;
            }
        }
        changed |= moved > 0;
        if (moved * 50 < rows) break;  // the last few per cent do not pay for another round
    }
    return changed;
}

// Numbers labels 0..C-1 in order of first use.
int32_t compact(std::vector<int32_t>& label) {
    std::vector<int32_t> number(label.size(), -1);
    int32_t next = 0;
    for (auto& l : label) {
        if (number[l] < 0) number[l] = next++;
        l = number[l];
    }
    return next;
}

template <class Each>
Weighted contract(int64_t rows, Each&& each, const std::vector<int32_t>& size,
                  const std::vector<double>& degree, const std::vector<int32_t>& label, int32_t communities) {
    Weighted coarse;
    coarse.size.assign(communities, 0);
    coarse.degree.assign(communities, 0);
    coarse.start.assign(1, 0);
    std::vector<int64_t> first(communities + 1, 0);
    for (int64_t v = 0; v < rows; ++v) ++first[label[v] + 1];
    for (int32_t c = 0; c < communities; ++c) first[c + 1] += first[c];
    std::vector<int32_t> members(rows);
    std::vector<int64_t> next(first.begin(), first.end() - 1);
    for (int64_t v = 0; v < rows; ++v) members[next[label[v]]++] = static_cast<int32_t>(v);
    std::vector<float> count(communities, 0.f);
    std::vector<int32_t> met;
    for (int32_t c = 0; c < communities; ++c) {
        met.clear();
        for (int64_t i = first[c]; i < first[c + 1]; ++i) {
            const int32_t v = members[i];
            coarse.size[c] += size[v];
            coarse.degree[c] += degree[v];
            each(v, [&](int32_t u, float w) {
                const int32_t l = label[u];
                if (l == c) return;
                if (count[l] == 0.f) met.push_back(l);
                count[l] += w;
            });
        }
        for (int32_t l : met) {
            coarse.to.push_back(l);
            coarse.weight.push_back(count[l]);
            count[l] = 0.f;
        }
        coarse.start.push_back(static_cast<int64_t>(coarse.to.size()));
    }
    return coarse;
}

std::vector<int64_t> community_order_of(const Neighbours& graph, int64_t room, int64_t growth, int rounds) {
    const int64_t rows = graph.rows;
    std::vector<int32_t> label(rows);
    std::iota(label.begin(), label.end(), 0);
    std::vector<int32_t> size(rows, 1);
    std::vector<double> degree(rows);
    for (int64_t v = 0; v < rows; ++v) degree[v] = static_cast<double>(graph.degree(v));
    auto each = [&](int64_t v, auto&& f) { graph.each(v, [&](int32_t u) { f(u, 1.f); }); };
    propagate(rows, each, size, degree, room, rounds, label);
    int32_t communities = compact(label);
    std::vector<std::vector<int32_t>> levels{label};  // levels[i][c]: where community c of level i belongs
    Weighted coarse = contract(rows, each, size, degree, label, communities);
    while (communities > 1 && levels.size() < 12) {
        room *= growth;
        std::vector<int32_t> up(communities);
        std::iota(up.begin(), up.end(), 0);
        auto over = [&](int64_t v, auto&& f) {
            for (int64_t k = coarse.start[v]; k < coarse.start[v + 1]; ++k) f(coarse.to[k], coarse.weight[k]);
        };
        if (!propagate(communities, over, coarse.size, coarse.degree, room, rounds, up)) {
            if (room >= rows) break;
            continue;
        }
        const int32_t fewer = compact(up);
        Weighted coarser = contract(communities, over, coarse.size, coarse.degree, up, fewer);
        levels.push_back(std::move(up));
        coarse = std::move(coarser);
        communities = fewer;
    }
    // From the top down: communities in order, each one's members in order, down to the vertices.
    std::vector<int32_t> rank(communities);
    std::iota(rank.begin(), rank.end(), 0);
    std::vector<int64_t> order;
    for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
        const auto& up = *level;
        std::vector<int64_t> first(rank.size() + 1, 0);
        for (int32_t parent : up) ++first[rank[parent] + 1];
        for (size_t c = 0; c < rank.size(); ++c) first[c + 1] += first[c];
        order.assign(up.size(), 0);
        for (size_t c = 0; c < up.size(); ++c) order[first[rank[up[c]]]++] = static_cast<int64_t>(c);
        rank.assign(up.size(), 0);
        for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = static_cast<int32_t>(i);
    }
    if (order.empty()) {
        order.resize(rows);
        std::iota(order.begin(), order.end(), int64_t{0});
    }
    return order;
}

Out<int64_t> community_order(In<int64_t> indptr, In<int32_t> indices, int64_t room, int64_t growth,
                             int rounds) {
    if (room < 1 || growth < 2 || rounds < 1) throw std::invalid_argument("room, growth or rounds too small");
    std::vector<int64_t> order;
    {
        nb::gil_scoped_release free;
        order = community_order_of(checked(indptr, indices), room, growth, rounds);
    }
    return give(std::move(order));
}

// ---------------------------------------------------------------------------------------------------------
// Assignment.

using weft::Parts;
using weft::Tally;

void count_around(Tally& tally, const Neighbours& graph, int64_t v, const std::vector<int32_t>& owner) {
    graph.each_weighted(v, [&](int32_t u, int32_t weight) {
        if (owner[u] >= 0 && u != v) tally.count(owner[u], weight);
    });
}

// The vertices of an order one after another. Each sees those that came before it (and where the others are so far,
// if they are anywhere: owner >= 0).
void stream_of(const Neighbours& graph, const int64_t* order, int64_t length, Parts& parts, int passes,
               std::vector<int32_t>& owner) {
    const int64_t rows = graph.rows;
    double edges = 0;
    for (int64_t v = 0; v < rows; ++v) {
        if (owner[v] >= 0) parts.add(v, owner[v], +1);
        edges += static_cast<double>(graph.degree(v)) / 2;
    }
    const double per_part = static_cast<double>(rows) / static_cast<double>(parts.num);
    const double spread = std::sqrt(static_cast<double>(parts.num)) * edges;
    const double price = 1.5 * spread / std::pow(std::max<double>(1, rows), 1.5);
    Tally tally(parts.num);
    for (int64_t i = 0; i < length * passes; ++i) {
        const int64_t v = order[i % length];
        if (owner[v] >= 0) parts.add(v, owner[v], -1);
        count_around(tally, graph, v, owner);
        const int32_t best = weft::best_part(parts, tally, v, price, per_part);
        tally.clear();
        owner[v] = best;
        parts.add(v, best, +1);
    }
}

// Moves vertices to where most of their neighbours are, if there is room.
void refine(const Neighbours& graph, Parts& parts, std::vector<int32_t>& owner, Tally& tally) {
    for (int64_t v = 0; v < graph.rows; ++v) {
        const int32_t own = owner[v];
        count_around(tally, graph, v, owner);
        int32_t best = own;
        for (int32_t p : tally.met)
            if (tally.of[p] > tally.of[best] && parts.fits(v, p)) best = p;
        tally.clear();
        if (best != own) parts.move(v, own, best), owner[v] = best;
    }
}

// Moves vertices out of parts that hold too much of something. Every move lowers the sum of squared excesses,
// so what fits nowhere at once spreads until it does. Cheap moves come first, and after each round the
// neighbours of what was moved may follow it: that shifts a border instead of scattering vertices.
void rebalance_of(const Neighbours& graph, Parts& parts, std::vector<int32_t>& owner) {
    for (int64_t v = 0; v < graph.rows; ++v) parts.add(v, owner[v], +1);
    Tally tally(parts.num);
    for (int round = 0; round < 26; ++round) {
        // What a move may add to the cut, as a share of the vertex's edges: little at first, then anything.
        const double share = std::min(1.0, 0.05 * round);
        if (*std::max_element(parts.fullest.begin(), parts.fullest.end()) <= 1) return;
        for (int64_t v = 0; v < graph.rows; ++v) {
            const int32_t own = owner[v];
            if (parts.fullest[own] <= 1 || !parts.relieves(v, own)) continue;
            count_around(tally, graph, v, owner);
            const double relief = parts.excess(v, own, -1);
            int32_t best = -1;
            auto consider = [&](int32_t p) {
                if (p == own || (best >= 0 && tally.of[p] < tally.of[best])) return;
                const bool tied = best >= 0 && tally.of[p] == tally.of[best];
                if (tied && parts.fullest[p] >= parts.fullest[best]) return;
                if (relief + parts.excess(v, p, +1) < -1e-12) best = p;
            };
            for (int32_t p : tally.met) consider(p);
            if (best < 0)
                for (int32_t p = 0; p < parts.num; ++p) consider(p);
            const double added = best < 0 ? 0 : tally.of[own] - tally.of[best];
            tally.clear();
            if (best < 0 || added > share * graph.weight(v)) continue;
            parts.move(v, own, best);
            owner[v] = best;
        }
        refine(graph, parts, owner, tally);
    }
}

Parts parts_for(int64_t rows, int64_t num, const In2<double>& load, const In<double>& limit) {
    if (num < 1) throw std::invalid_argument("there must be a part");
    if (static_cast<int64_t>(load.shape(0)) != rows || load.shape(1) != limit.size())
        throw std::invalid_argument("load must be [vertices, kinds] and limit [kinds]");
    return Parts(num, static_cast<int64_t>(load.shape(1)), load.data(), limit.data());
}

std::vector<int32_t> checked_owner(const In<int32_t>& owner, int64_t rows, int64_t num_parts,
                                   int32_t least) {
    if (static_cast<int64_t>(owner.size()) != rows) throw std::invalid_argument("owner must be [vertices]");
    std::vector<int32_t> result(owner.data(), owner.data() + owner.size());
    for (int32_t part : result)
        if (part < least || part >= num_parts) throw std::invalid_argument("owner names an unknown part");
    return result;
}

// owner: where vertices are at the start, -1 for nowhere yet; those that are somewhere need not be in the order, and
// then stay there.
Out<int32_t> stream_partition(In<int64_t> indptr, In<int32_t> indices, In<int64_t> order, In<int32_t> owner,
                              int64_t num_parts, In2<double> load, In<double> limit, int passes) {
    std::vector<int32_t> result;
    {
        nb::gil_scoped_release free;
        const Neighbours graph = checked(indptr, indices);
        const int64_t length = static_cast<int64_t>(order.size());
        result = checked_owner(owner, graph.rows, num_parts, -1);
        std::vector<char> seen(graph.rows, 0);
        for (int64_t i = 0; i < length; ++i) {
            const int64_t v = order.data()[i];
            if (v < 0 || v >= graph.rows || seen[v]++) throw std::invalid_argument("order is no permutation");
        }
        for (int64_t v = 0; v < graph.rows; ++v)
            if (result[v] < 0 && !seen[v]) throw std::invalid_argument("order leaves out a vertex without a part");
        Parts parts = parts_for(graph.rows, num_parts, load, limit);
        stream_of(graph, order.data(), length, parts, passes, result);
    }
    return give(std::move(result));
}

// weight: of each edge, positive; none: 1.
Out<int32_t> rebalance(In<int64_t> indptr, In<int32_t> indices, In<int32_t> owner, int64_t num_parts,
                       In2<double> load, In<double> limit, std::optional<In<int32_t>> weight) {
    std::vector<int32_t> result;
    {
        nb::gil_scoped_release free;
        if (weight && weight->size() != indices.size()) throw std::invalid_argument("weight must be [edges]");
        const Neighbours graph = checked(indptr, indices, weight ? weight->data() : nullptr);
        result = checked_owner(owner, graph.rows, num_parts, 0);
        Parts parts = parts_for(graph.rows, num_parts, load, limit);
        rebalance_of(graph, parts, result);
    }
    return give(std::move(result));
}

}  // namespace

void bind_partition(nb::module_& module) {
    using namespace nb::literals;
    module.def("community_order", &community_order, "indptr"_a, "indices"_a, "room"_a, "growth"_a, "rounds"_a);
    module.def("stream_partition", &stream_partition, "indptr"_a, "indices"_a, "order"_a, "owner"_a,
               "num_parts"_a, "load"_a, "limit"_a, "passes"_a);
    module.def("rebalance", &rebalance, "indptr"_a, "indices"_a, "owner"_a, "num_parts"_a, "load"_a, "limit"_a,
               "weight"_a = nb::none());
}
