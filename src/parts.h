// What parts hold and may hold, and which of them a vertex should join: shared by assignment in memory and from files.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace weft {

// Every vertex has K loads (itself, its in-edges, being a training vertex, ...), every part has room for so much of
// each.
struct Parts {
    int64_t num, kinds;
    const double* load;           // [rows, kinds]
    std::vector<double> limit;    // [kinds]
    std::vector<double> filled;   // [num, kinds]
    std::vector<double> fullest;  // [num], the largest of filled / limit

    Parts(int64_t num_, int64_t kinds_, const double* load_, const double* limit_)
        : num(num_),
          kinds(kinds_),
          load(load_),
          limit(limit_, limit_ + kinds_),
          filled(num_ * kinds_, 0.0),
          fullest(num_, 0.0) {}

    void add(int64_t v, int32_t part, double sign) {
        double most = 0;
        for (int64_t k = 0; k < kinds; ++k) {
            double& f = filled[part * kinds + k];
            f += sign * load[v * kinds + k];
            if (limit[k] > 0) most = std::max(most, f / limit[k]);
        }
        fullest[part] = most;
    }
    // Sets what a part holds, [kinds].
    void fill(int32_t part, const double* loads) {
        std::copy(loads, loads + kinds, filled.begin() + part * kinds);
        fullest[part] = 0;
        for (int64_t k = 0; k < kinds; ++k)
            if (limit[k] > 0) fullest[part] = std::max(fullest[part], loads[k] / limit[k]);
    }
    void move(int64_t v, int32_t from, int32_t to) {
        add(v, from, -1);
        add(v, to, +1);
    }
    bool fits(int64_t v, int32_t part) const {
        for (int64_t k = 0; k < kinds; ++k) {
            const double w = load[v * kinds + k];
            if (w > 0 && filled[part * kinds + k] + w > limit[k]) return false;
        }
        return true;
    }
    // How full the part would be with v in it.
    double with(int64_t v, int32_t part) const {
        double most = 0;
        for (int64_t k = 0; k < kinds; ++k)
            if (limit[k] > 0)
                most = std::max(most, (filled[part * kinds + k] + load[v * kinds + k]) / limit[k]);
        return most;
    }
    // By how much the squared excess over the limits changes if v enters (+1) or leaves (-1) the part.
    double excess(int64_t v, int32_t part, double sign) const {
        double change = 0;
        for (int64_t k = 0; k < kinds; ++k) {
            if (limit[k] <= 0) continue;
            const double before = filled[part * kinds + k] / limit[k] - 1;
            const double after = before + sign * load[v * kinds + k] / limit[k];
            change += (after > 0 ? after * after : 0) - (before > 0 ? before * before : 0);
        }
        return change;
    }
    // Whether v weighs on something of which the part has too much.
    bool relieves(int64_t v, int32_t part) const {
        for (int64_t k = 0; k < kinds; ++k)
            if (load[v * kinds + k] > 0 && filled[part * kinds + k] > limit[k]) return true;
        return false;
    }
    int32_t least_full() const {
        return static_cast<int32_t>(std::min_element(fullest.begin(), fullest.end()) - fullest.begin());
    }
    int32_t emptiest(int64_t v) const {
        int32_t best = 0;
        double least = std::numeric_limits<double>::infinity();
        for (int32_t p = 0; p < num; ++p) {
            const double full = with(v, p);
            if (full < least) least = full, best = p;
        }
        return best;
    }
};

// The edges that join a vertex to each part: how many, or what they weigh.
struct Tally {
    std::vector<int32_t> of;   // [parts], all zero between vertices
    std::vector<int32_t> met;  // the parts that are not

    explicit Tally(int64_t parts) : of(parts, 0) {}
    void count(int32_t part, int32_t weight = 1) {
        if (of[part] == 0) met.push_back(part);
        of[part] += weight;
    }
    void clear() {
        for (int32_t p : met) of[p] = 0;
        met.clear();
    }
};

// Fennel: neighbours already in a part, less the marginal cost of its size; only parts with room.
inline int32_t best_part(const Parts& parts, const Tally& tally, int64_t v, double price, double per_part) {
    int32_t best = -1;
    double best_score = -std::numeric_limits<double>::infinity();
    auto consider = [&](int32_t p) {
        const double score = tally.of[p] - price * std::sqrt(parts.fullest[p] * per_part);
        const bool better = score > best_score || (score == best_score && p < best);
        if (better && parts.fits(v, p)) best_score = score, best = p;
    };
    for (int32_t p : tally.met) consider(p);
    consider(parts.least_full());
    return best < 0 ? parts.emptiest(v) : best;
}

}  // namespace weft
