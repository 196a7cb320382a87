// Out-of-core partitioning: edges from files are counted, grouped by bucket and sorted, their vertices are assigned to
// parts, and edges are divided into local and remote ones. Functions run on one thread: workers are the parallelism.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <nanobind/stl/vector.h>

#include "bind.h"
#include "parts.h"

namespace weft {
namespace {

template <class T>
using List = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Table = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

template <class Array>
int64_t length(const Array& array) {
    return static_cast<int64_t>(array.shape(0));
}

// What edges carry, array by array, as bytes [edges, bytes of a value]: weights, times, whatever moves along with them.
using Carried = std::vector<Table<const uint8_t>>;
using Room = std::vector<Table<uint8_t>>;

// Values of one array, copied one by one from its place to others.
struct Mover {
    const uint8_t* from;
    uint8_t* to;
    int64_t bytes;
    void move(int64_t source, int64_t target) const {
        if (bytes == 8) {
            std::memcpy(to + 8 * target, from + 8 * source, 8);
        } else if (bytes == 4) {
            std::memcpy(to + 4 * target, from + 4 * source, 4);
        } else {
            std::memcpy(to + bytes * target, from + bytes * source, bytes);
        }
    }
};

// `rows` values of each array, to room for at least `places`.
std::vector<Mover> movers(const Carried& carried, const Room& room, int64_t rows, int64_t places) {
    require(carried.size() == room.size(), "every array that edges carry needs room");
    std::vector<Mover> made;
    for (size_t k = 0; k < carried.size(); ++k) {
        require(length(carried[k]) == rows && length(room[k]) >= places, "one value per edge is needed");
        require(carried[k].shape(1) == room[k].shape(1), "values of another size than their room");
        made.push_back({carried[k].data(), room[k].data(), static_cast<int64_t>(room[k].shape(1))});
    }
    return made;
}

// degrees[v] += edges that end at v. With `both_ways` an edge also runs back, unless it is a loop.
void count_edges(List<const int32_t> src, List<const int32_t> dst, bool both_ways, List<int32_t> degrees) {
    const int64_t edges = length(src), rows = length(degrees);
    require(length(dst) == edges, "src and dst differ in length");
    const int32_t *u = src.data(), *v = dst.data();
    int32_t* degree = degrees.data();
    for (int64_t k = 0; k < edges; ++k) {
        require(u[k] >= 0 && u[k] < rows && v[k] >= 0 && v[k] < rows, "an edge points outside");
        ++degree[v[k]];
        if (both_ways && u[k] != v[k]) ++degree[u[k]];
    }
}

// Edges by the group of their destination's cell (its id >> shift), those of a group in the order in which they came:
// pairs [edges, 2] of (source, destination) and what they carry in `room`, counts [groups]. Returns how many there are
// without loops, if those are to be left out.
int64_t group_edges(List<const int32_t> src, List<const int32_t> dst, const Carried& carried, bool without_loops,
                    int shift, List<const int32_t> group_of_cell, Table<int32_t> pairs, const Room& room,
                    List<int64_t> counts) {
    const int64_t edges = length(src), cells = length(group_of_cell), groups = length(counts);
    require(length(dst) == edges && length(pairs) >= edges && pairs.shape(1) == 2, "arrays differ in length");
    const std::vector<Mover> along = movers(carried, room, edges, edges);
    const int32_t *u = src.data(), *v = dst.data(), *group = group_of_cell.data();
    int32_t* pair = pairs.data();
    int64_t* count = counts.data();
    std::fill(count, count + groups, 0);
    for (int64_t c = 0; c < cells; ++c) require(group[c] >= 0 && group[c] < groups, "a cell has an unknown group");
    for (int64_t k = 0; k < edges; ++k) {
        require(v[k] >= 0 && (v[k] >> shift) < cells, "an edge points outside");
        if (!(without_loops && u[k] == v[k])) ++count[group[v[k] >> shift]];
    }
    std::vector<int64_t> next(groups, 0);
    for (int64_t g = 1; g < groups; ++g) next[g] = next[g - 1] + count[g - 1];
    for (int64_t k = 0; k < edges; ++k) {
        if (without_loops && u[k] == v[k]) continue;
        const int64_t at = next[group[v[k] >> shift]]++;
        pair[2 * at] = u[k];
        pair[2 * at + 1] = v[k];
        for (const Mover& one : along) one.move(k, at);
    }
    return groups ? next[groups - 1] : 0;
}

// The in-edges of vertices first, first + 1, ...: each row's sources ascending. With `order` (else empty) equal ones
// stay in the order in which they came, and order[k] is the number of the pair that became edge k.
void sort_bucket(Table<const int32_t> pairs, int64_t first, List<int64_t> indptr, List<int32_t> indices,
                List<int64_t> order) {
    const int64_t edges = length(pairs), rows = length(indptr) - 1;
    const bool ordered = length(order) > 0;
    require(rows >= 0 && length(indices) == edges && pairs.shape(1) == 2, "arrays differ in length");
    require(!ordered || (length(order) == edges && edges < (int64_t{1} << 32)), "order must be [edges], below 2^32");
    const int32_t* pair = pairs.data();
    int64_t* start = indptr.data();
    std::fill(start, start + rows + 1, 0);
    for (int64_t k = 0; k < edges; ++k) {
        const int64_t row = pair[2 * k + 1] - first;
        require(row >= 0 && row < rows, "an edge is not of this bucket");
        ++start[row + 1];
    }
    for (int64_t row = 0; row < rows; ++row) start[row + 1] += start[row];
    std::vector<int64_t> next(start, start + rows);
    int32_t* source = indices.data();
    if (!ordered) {
        for (int64_t k = 0; k < edges; ++k) source[next[pair[2 * k + 1] - first]++] = pair[2 * k];
        for (int64_t row = 0; row < rows; ++row) std::sort(source + start[row], source + start[row + 1]);
        return;
    }
    auto* keys = reinterpret_cast<uint64_t*>(order.data());  // (source, position), sorted in place, then unpacked
    for (int64_t k = 0; k < edges; ++k)
        keys[next[pair[2 * k + 1] - first]++] = static_cast<uint64_t>(pair[2 * k]) << 32 | static_cast<uint64_t>(k);
    for (int64_t row = 0; row < rows; ++row) std::sort(keys + start[row], keys + start[row + 1]);
    for (int64_t k = 0; k < edges; ++k) {
        source[k] = static_cast<int32_t>(keys[k] >> 32);
        keys[k] &= 0xFFFFFFFFu;
    }
}

// Assigns the vertices first, first + 1, ... to parts, one after another, by where their in-neighbours are and how full
// the parts are. owner [N] is -1 for vertices that are nowhere yet; load [rows, kinds] is what each of these vertices
// adds to its part, filled [parts, kinds] what parts hold: both owner and filled are brought up to date.
void stream_rows(List<const int64_t> indptr, List<const int32_t> indices, int64_t first, List<int16_t> owner,
                 Table<const double> load, List<const double> limit, Table<double> filled, double price,
                 double per_part) {
    const int64_t rows = length(load), kinds = length(limit), num = length(filled), nodes = length(owner);
    require(length(indptr) == rows + 1 && first >= 0 && first + rows <= nodes, "rows do not fit");
    require(static_cast<int64_t>(load.shape(1)) == kinds && static_cast<int64_t>(filled.shape(1)) == kinds && num > 0,
            "load is [rows, kinds], filled is [parts, kinds], limit is [kinds]");
    const int64_t* start = indptr.data();
    require(rows == 0 || (start[0] >= 0 && start[rows] <= length(indices)), "indptr does not fit indices");
    Parts parts(num, kinds, load.data(), limit.data());
    for (int32_t p = 0; p < num; ++p) parts.fill(p, filled.data() + p * kinds);
    Tally tally(num);
    const int32_t* source = indices.data();
    int16_t* part_of = owner.data();
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t v = first + row;
        require(part_of[v] < num, "owner names an unknown part");
        if (part_of[v] >= 0) parts.add(row, part_of[v], -1);
        for (int64_t k = start[row]; k < start[row + 1]; ++k) {
            const int32_t u = source[k];
            require(u >= 0 && u < nodes, "an edge points outside");
            if (u != v && part_of[u] >= 0) tally.count(part_of[u]);
        }
        const int32_t best = best_part(parts, tally, row, price, per_part);
        tally.clear();
        part_of[v] = static_cast<int16_t>(best);
        parts.add(row, best, +1);
    }
    std::copy(parts.filled.begin(), parts.filled.end(), filled.data());
}

// Sources become positions, in place; counts [3, parts] are rows, local edges and remote edges of every part.
// owner is that of each row, starts [parts + 1] are the parts' first positions.
void locate(List<const int64_t> indptr, List<int32_t> indices, List<const int16_t> owner,
            List<const int32_t> position, List<const int64_t> starts, Table<int64_t> counts) {
    const int64_t rows = length(owner), num = length(starts) - 1;
    require(length(indptr) == rows + 1 && counts.shape(0) == 3 && static_cast<int64_t>(counts.shape(1)) == num,
            "arrays differ in length");
    int64_t *row_count = counts.data(), *local = row_count + num, *remote = local + num;
    std::fill(row_count, row_count + 3 * num, 0);
    const int64_t nodes = length(position), *row_start = indptr.data(), *part_start = starts.data();
    const int32_t* position_of = position.data();
    const int16_t* part_of = owner.data();
    int32_t* index = indices.data();
    for (int64_t row = 0; row < rows; ++row) {
        const int32_t part = part_of[row];
        require(part >= 0 && part < num, "owner names an unknown part");
        const int64_t begin = part_start[part], end = part_start[part + 1];
        int64_t inside = 0;
        for (int64_t k = row_start[row]; k < row_start[row + 1]; ++k) {
            require(index[k] >= 0 && index[k] < nodes, "an edge points outside");
            index[k] = position_of[index[k]];
            inside += index[k] >= begin && index[k] < end;
        }
        ++row_count[part];
        local[part] += inside;
        remote[part] += row_start[row + 1] - row_start[row] - inside;
    }
}

// Rows by part, after `locate`: degrees of each row, local edges as rows of the part, remote ones as positions, and
// what either carry.
void split_rows(List<const int64_t> indptr, List<const int32_t> positions, const Carried& carried,
                List<const int16_t> owner, List<const int64_t> starts, Table<const int64_t> counts,
                List<int32_t> local_degrees, List<int32_t> remote_degrees, List<int32_t> local, List<int32_t> remote,
                const Room& local_room, const Room& remote_room) {
    const int64_t rows = length(owner), num = length(starts) - 1;
    require(length(local_degrees) == rows && length(remote_degrees) == rows, "one degree per row is needed");
    require(length(local) + length(remote) == length(positions), "local and remote edges are all edges");
    const std::vector<Mover> to_inner = movers(carried, local_room, length(positions), length(local));
    const std::vector<Mover> to_outer = movers(carried, remote_room, length(positions), length(remote));
    const int64_t sums[3] = {rows, length(local), length(remote)};
    std::vector<int64_t> next[3];  // of rows, local edges, remote edges
    for (int64_t kind = 0; kind < 3; ++kind) {
        int64_t sum = 0;
        for (int64_t p = 0; p < num; ++p) {
            next[kind].push_back(sum);
            sum += counts.data()[kind * num + p];
        }
        require(sum == sums[kind], "counts are not those that `locate` found");
    }
    const int64_t *row_start = indptr.data(), *part_start = starts.data();
    const int32_t* position = positions.data();
    int32_t *to_local = local.data(), *to_remote = remote.data();
    for (int64_t row = 0; row < rows; ++row) {
        const int32_t part = owner.data()[row];
        const int64_t begin = part_start[part], end = part_start[part + 1];
        int64_t &inner = next[1][part], &outer = next[2][part];
        const int64_t inner_before = inner, outer_before = outer, at = next[0][part]++;
        for (int64_t k = row_start[row]; k < row_start[row + 1]; ++k) {
            const bool inside = position[k] >= begin && position[k] < end;
            for (const Mover& one : inside ? to_inner : to_outer) one.move(k, inside ? inner : outer);
            if (inside)
                to_local[inner++] = static_cast<int32_t>(position[k] - begin);
            else
                to_remote[outer++] = position[k];
        }
        local_degrees.data()[at] = static_cast<int32_t>(inner - inner_before);
        remote_degrees.data()[at] = static_cast<int32_t>(outer - outer_before);
    }
}

// One bit per position, set where it occurs.
void mark_bits(List<const int32_t> positions, List<uint64_t> bits) {
    const int64_t count = length(positions), words = length(bits);
    const int32_t* position = positions.data();
    uint64_t* word = bits.data();
    for (int64_t k = 0; k < count; ++k) {
        require(position[k] >= 0 && (position[k] >> 6) < words, "a position lies outside");
        word[position[k] >> 6] |= uint64_t{1} << (position[k] & 63);
    }
}

// Every position becomes the number of marked ones before it; `before` [words] counts those before each word.
void number_bits(List<int32_t> positions, List<const uint64_t> bits, List<const int64_t> before) {
    const int64_t count = length(positions), words = length(bits), *earlier = before.data();
    require(length(before) == words, "one count per word is needed");
    int32_t* position = positions.data();
    const uint64_t* word = bits.data();
    for (int64_t k = 0; k < count; ++k) {
        const int32_t at = position[k] >> 6;
        require(position[k] >= 0 && at < words, "a position lies outside");
        const uint64_t lower = word[at] & ((uint64_t{1} << (position[k] & 63)) - 1);
        position[k] = static_cast<int32_t>(earlier[at] + __builtin_popcountll(lower));
    }
}

}  // namespace

void bind_out_of_core(nb::module_& module) {
    using namespace nb::literals;
    const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
    module.def("count_edges", &count_edges, "src"_a, "dst"_a, "both_ways"_a, "degrees"_a, unlocked);
    module.def("group_edges", &group_edges, "src"_a, "dst"_a, "carried"_a, "without_loops"_a, "shift"_a,
               "group_of_cell"_a, "pairs"_a, "room"_a, "counts"_a, unlocked);
    module.def("sort_bucket", &sort_bucket, "pairs"_a, "first"_a, "indptr"_a, "indices"_a, "order"_a, unlocked);
    module.def("stream_rows", &stream_rows, "indptr"_a, "indices"_a, "first"_a, "owner"_a, "load"_a, "limit"_a,
               "filled"_a, "price"_a, "per_part"_a, unlocked);
    module.def("locate", &locate, "indptr"_a, "indices"_a, "owner"_a, "position"_a, "starts"_a, "counts"_a, unlocked);
    module.def("split_rows", &split_rows, "indptr"_a, "positions"_a, "carried"_a, "owner"_a, "starts"_a,
               "counts"_a, "local_degrees"_a, "remote_degrees"_a, "local"_a, "remote"_a, "local_room"_a,
               "remote_room"_a, unlocked);
    module.def("mark_bits", &mark_bits, "positions"_a, "bits"_a, unlocked);
    module.def("number_bits", &number_bits, "positions"_a, "bits"_a, "before"_a, unlocked);
}

}  // namespace weft
