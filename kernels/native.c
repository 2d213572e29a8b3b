/* One decoder layer on a CPU, in C: what torch does here in twenty operations, in one call and one team of threads.

   Every row is computed by the same instructions in the same order, whatever else is in the batch: products are
   summed along k in order (the 64 of a group exactly), keys and values in aligned chunks of 64 positions. So a
   row's bits do not depend on its neighbours, on how its prompt was chunked, or on the number of threads.

   Weights are packed in tiles of 16 columns: int8 as [n/16][k/4][16][4] (what VNNI multiplies at once), float
   as [n/16][k][16]. A slot of the KV memory is a row: K of all heads | V of all heads | K scales | V scales
   (kv_cache.py). Vectors are GCC's, 16 floats wide; the compiler cuts them to what the machine has. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef float vf __attribute__((vector_size(64)));
typedef float vfu __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(64)));
typedef int32_t viu __attribute__((vector_size(64), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define LANES 16
#define MAX_DIM 256
#define GROUP 64 /* activations that share a scale */
#define TOGETHER 48 /* query rows that share a pass over the keys */
#define KEYS 64 /* positions that a pass looks at together */

enum { FLOAT32, FLOAT16, BFLOAT16, INT8 };
enum Part { NORMS, PRODUCTS, PLACING, ATTENTION, GATE }; /* norms and gate with the encoding of what they give */

typedef struct {
  int64_t type, n, k;     /* y[n] = w[n, k] x[k]; n and k as they are, the packing is padded with zeros */
  const void *weight;
  const float *scale;     /* int8: of each column */
  const int16_t *sums;    /* int8: [n/16][k/64][16], what stored activations, 128 too large, are corrected by */
  const float *bias;      /* or NULL */
} Linear;

typedef struct {
  Linear qkv, o, gate_up, down;
  const float *attn_norm, *ffn_norm, *q_norm, *k_norm; /* the last two of one head, or NULL */
  char *kv;                                            /* this layer's slots */
  int64_t window;                                      /* positions a token sees, itself included; 0 for all */
} Layer;

typedef struct {
  int64_t hidden, heads, kv_heads, head_dim, intermediate;
  int64_t kv_type, slot_bytes, block_shift, threads; /* blocks of 2^block_shift slots */
  float eps;
  const float *cosines, *sines; /* [context, head_dim / 2] */
  double *spent;                /* seconds by `Part`, added to; or NULL */
} Model;

typedef struct {
  int64_t rows, groups;
  const int64_t *positions, *slots; /* of each row */
  const int32_t *group_row, *group_len, *group_table; /* some rows of one sequence; its table's start */
  const int32_t *tables;            /* block numbers */
  float *x;                         /* [rows, hidden], read and written */
  float *wide, *heads_out, *input;  /* scratch: [rows, widest output], [rows, heads * dim], [rows, widest input] */
  uint8_t *codes;                   /* scratch: [rows, widest input padded to 4] */
  float *code_scale;                /* scratch: [rows, widest input / 64] */
} Step;

/* ------------------------------------------------------------------------------------------------- vectors */

INLINE vf splat(float x) { return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
INLINE vf load(const float *p) { return *(const vfu *)p; }
INLINE void store(float *p, vf x) { *(vfu *)p = x; }

INLINE vf fma16(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  return a * b + c;
#endif
}

INLINE vf pick(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
INLINE vf max16(vf a, vf b) {
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return pick(a > b, a, b);
#endif
}

INLINE float sum_lanes(vf x) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

INLINE float max_lanes(vf x) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] = MAX(x[i], x[i + half]);
  return x[0];
}

/* e^x to 1e-7 of itself: 2^n times a polynomial on [-ln2/2, ln2/2]; 0 of -inf, no number of none. */
INLINE vf exp16(vf x) {
#if defined(__AVX512F__)
  x = (vf)_mm512_max_ps((__m512)splat(-104.0f), (__m512)x); /* of a NaN, max gives the second */
  vf n = (vf)_mm512_roundscale_ps((__m512)(x * splat(1.44269504f)), 0);
#else
  vf of = x;
  x = pick(x > splat(-87.0f), x, splat(-87.0f));
  x = pick(x < splat(88.0f), x, splat(88.0f));
  vf n = x * splat(1.44269504f) + splat(12582912.0f) - splat(12582912.0f);
#endif
  vf r = fma16(n, splat(-0.693359375f), x);
  r = fma16(n, splat(2.12194440e-4f), r);
  vf y = splat(1.9875691500e-4f);
  y = fma16(y, r, splat(1.3981999507e-3f));
  y = fma16(y, r, splat(8.3334519073e-3f));
  y = fma16(y, r, splat(4.1665795894e-2f));
  y = fma16(y, r, splat(1.6666665459e-1f));
  y = fma16(y, r, splat(5.0000001201e-1f));
  y = fma16(y, r * r, r + splat(1.0f));
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
  vi exponent = (__builtin_convertvector(n, vi) + 127) << 23;
  return pick(of == splat(-INFINITY), splat(0), pick(of == of, y * (vf)exponent, of));
#endif
}

INLINE vf load_kv(const char *row, int64_t at, const int type) {
  if (type == FLOAT32) return load((const float *)row + at);
#if defined(__AVX512F__)
  if (type == FLOAT16) return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)(row + 2 * at)));
  if (type == BFLOAT16)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(row + 2 * at))), 16);
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(row + at))));
#else
  vf x;
  for (int i = 0; i < LANES; i++) {
    if (type == FLOAT16) x[i] = (float)((const _Float16 *)row)[at + i];
    else if (type == BFLOAT16) {
      uint32_t bits = (uint32_t)((const uint16_t *)row)[at + i] << 16;
      memcpy((float *)&x + i, &bits, 4);
    } else x[i] = (float)((const int8_t *)row)[at + i];
  }
  return x;
#endif
}

/* ---------------------------------------------------------------------------------------------------- rows */

APART void norm_row(const float *x, const float *weight, float eps, int64_t n, float *out) {
  vf sums = splat(0);
  float rest = 0;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) sums = fma16(load(x + i), load(x + i), sums);
  for (; i < n; i++) rest += x[i] * x[i];
  float factor = 1.0f / sqrtf((sum_lanes(sums) + rest) / (float)n + eps);
  for (i = 0; i + LANES <= n; i += LANES) store(out + i, load(x + i) * splat(factor) * load(weight + i));
  for (; i < n; i++) out[i] = x[i] * factor * weight[i];
}

/* A row as codes 1..255 with a scale for each 64: value = (code - 128) * scale. A few channels of a row are a
   hundred times the rest; with one scale for all they cost half of its precision. What is no number shows: the
   scale becomes one too. */
APART void encode_row(const float *x, int64_t n, uint8_t *codes, float *scales) {
  for (int64_t from = 0; from < n; from += GROUP) {
    const int64_t to = MIN(from + GROUP, n);
    vf peaks = splat(0), sums = splat(0);
    float peak = 0, sum = 0;
    int64_t i = from;
    for (; i + LANES <= to; i += LANES) {
      vf value = load(x + i);
      peaks = max16(peaks, max16(value, -value));
      sums += value;
    }
    for (; i < to; i++) peak = MAX(peak, fabsf(x[i])), sum += x[i];
    peak = MAX(peak, max_lanes(peaks));
    sum += sum_lanes(sums);
    float to_code = peak > 0 ? 127.0f / peak : 0;
    for (i = from; i + LANES <= to; i += LANES) {
      /* Adding 1.5 * 2^23 leaves the rounded number in the low bits. */
      vi rounded = (vi)(load(x + i) * splat(to_code) + splat(12582912.0f)) + (128 - 0x4B400000);
#if defined(__AVX512F__)
      _mm_storeu_si128((void *)(codes + i), _mm512_cvtepi32_epi8((__m512i)rounded));
#else
      for (int j = 0; j < LANES; j++) codes[i + j] = (uint8_t)rounded[j];
#endif
    }
    for (; i < to; i++) codes[i] = (uint8_t)(lrintf(x[i] * to_code) + 128);
    for (; i % 4; i++) codes[i] = 128;
    scales[from / GROUP] = sum - sum == 0 ? peak / 127.0f : NAN;
  }
}

/* A row where the multiplication by `linear` finds it. */
INLINE void give(const Linear *linear, const Step *step, int64_t row, const float *x) {
  if (linear->type == INT8)
    encode_row(x, linear->k, step->codes + row * ((linear->k + 3) / 4 * 4),
               step->code_scale + row * ((linear->k + GROUP - 1) / GROUP));
  else if (x != step->input + row * linear->k)
    memcpy(step->input + row * linear->k, x, linear->k * sizeof(float));
}

/* -------------------------------------------------------------------------------------------------- linear */

INLINE vi dot4(vi sums, int32_t four, const int8_t *weights) {
#if defined(__AVX512VNNI__)
  return (vi)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(four), _mm512_loadu_si512(weights));
#else
  for (int lane = 0; lane < LANES; lane++)
    for (int j = 0; j < 4; j++) sums[lane] += (int32_t)(uint8_t)(four >> 8 * j) * weights[4 * lane + j];
  return sums;
#endif
}

/* One tile of one row to its place: out = y * scales + bias, or added to what is there. */
APART void finish(const Linear *l, vf y, int64_t column, float *out, int add) {
  if (l->scale) y *= load(l->scale + column);
  if (l->bias) y += load(l->bias + column);
  int64_t n = MIN(LANES, l->n - column);
  if (n == LANES) {
    store(out + column, add ? load(out + column) + y : y);
  } else {
    for (int64_t i = 0; i < n; i++) out[column + i] = add ? out[column + i] + y[i] : y[i];
  }
}

/* Where the sum of one group starts, so that the 128 in every activation falls out. */
INLINE vi correction(const int16_t *sums) {
#if defined(__AVX512F__)
  return (vi){0} - (vi)_mm512_slli_epi32(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)sums)), 7);
#else
  vi start;
  for (int i = 0; i < LANES; i++) start[i] = -128 * sums[i];
  return start;
#endif
}

INLINE void code_tiles(const Linear *l, const Step *s, int64_t row, const int R, int64_t tile, const int T,
                       float *out, int64_t stride, int add) {
  const int64_t quads = (l->k + 3) / 4, groups = (l->k + GROUP - 1) / GROUP;
  const uint8_t *x = s->codes + row * quads * 4;
  const float *scales = s->code_scale + row * groups;
  const int8_t *w = (const int8_t *)l->weight + tile * quads * 64;
  vf y[8][8];
  for (int r = 0; r < R; r++)
    for (int t = 0; t < T; t++) y[r][t] = splat(0);
  for (int64_t g = 0; g < groups; g++) {
    vi sums[8][8];
    for (int t = 0; t < T; t++) {
      vi start = correction(l->sums + ((tile + t) * groups + g) * LANES);
      for (int r = 0; r < R; r++) sums[r][t] = start;
    }
    const int64_t end = MIN((g + 1) * GROUP / 4, quads);
    for (int64_t q = g * GROUP / 4; q < end; q++)
      for (int r = 0; r < R; r++) {
        int32_t four;
        memcpy(&four, x + (r * quads + q) * 4, 4);
        for (int t = 0; t < T; t++) sums[r][t] = dot4(sums[r][t], four, w + (t * quads + q) * 64);
      }
    for (int r = 0; r < R; r++)
      for (int t = 0; t < T; t++)
        y[r][t] = fma16(__builtin_convertvector(sums[r][t], vf), splat(scales[r * groups + g]), y[r][t]);
  }
  for (int r = 0; r < R; r++)
    for (int t = 0; t < T; t++) finish(l, y[r][t], (tile + t) * LANES, out + (row + r) * stride, add);
}

INLINE void float_tiles(const Linear *l, const Step *s, int64_t row, const int R, int64_t tile, const int T,
                        float *out, int64_t stride, int add) {
  const float *x = s->input + row * l->k, *w = (const float *)l->weight + tile * l->k * LANES;
  vf sums[8][8];
  for (int r = 0; r < R; r++)
    for (int t = 0; t < T; t++) sums[r][t] = splat(0);
  for (int64_t k = 0; k < l->k; k++)
    for (int t = 0; t < T; t++) {
      vf weights = load(w + (t * l->k + k) * LANES);
      for (int r = 0; r < R; r++) sums[r][t] = fma16(splat(x[r * l->k + k]), weights, sums[r][t]);
    }
  for (int r = 0; r < R; r++)
    for (int t = 0; t < T; t++)
      finish(l, sums[r][t], (tile + t) * LANES, out + (row + r) * stride, add);
}

/* R rows times T tiles at a time: as many sums as hide the multiplier's latency and still fit in registers. A
   function each, or the compiler spills the sums of one for the sake of another. */
#define BLOCK(KIND, R, T)                                                                                    \
  APART void KIND##_##R##x##T(const Linear *l, const Step *s, int64_t row, int64_t tile, float *out,         \
                              int64_t stride, int add) {                                                     \
    KIND##_tiles(l, s, row, R, tile, T, out, stride, add);                                                   \
  }
#define FEW_ROWS(KIND, R, T)                                                                                 \
  for (; row + R <= rows; row += R) {                                                                        \
    int64_t tile = from;                                                                                     \
    for (; tile + T <= to; tile += T) KIND##_##R##x##T(l, s, row, tile, out, stride, add);                   \
    for (; tile < to; tile++) KIND##_##R##x1(l, s, row, tile, out, stride, add);                             \
  }
/* A panel is a few tiles, for all rows. Two tiles stay in the nearest cache while many rows pass by; few rows
   pass once, with enough tiles at a time to keep the multipliers busy. */
#define PANEL(KIND)                                                                                          \
  BLOCK(KIND, 8, 2) BLOCK(KIND, 8, 1) BLOCK(KIND, 4, 4) BLOCK(KIND, 4, 1) BLOCK(KIND, 3, 4) BLOCK(KIND, 3, 1) \
  BLOCK(KIND, 2, 4) BLOCK(KIND, 2, 1) BLOCK(KIND, 1, 8) BLOCK(KIND, 1, 1)                                    \
  APART void KIND##_panel(const Linear *l, const Step *s, int64_t rows, int64_t from, int64_t to,            \
                          float *out, int64_t stride, int add) {                                             \
    const int64_t many = rows / 8 * 8;                                                                       \
    int64_t row = many, paired = from;                                                                       \
    for (; paired + 2 <= to; paired += 2)                                                                    \
      for (int64_t at = 0; at < many; at += 8) KIND##_8x2(l, s, at, paired, out, stride, add);               \
    for (int64_t at = 0; paired < to && at < many; at += 8) KIND##_8x1(l, s, at, paired, out, stride, add);  \
    FEW_ROWS(KIND, 4, 4)                                                                                     \
    FEW_ROWS(KIND, 3, 4)                                                                                     \
    FEW_ROWS(KIND, 2, 4)                                                                                     \
    FEW_ROWS(KIND, 1, 8)                                                                                     \
  }
PANEL(code)
PANEL(float)

/* Called by the whole team; ends in a barrier. */
static void multiply(const Linear *l, const Step *s, int64_t rows, float *out, int64_t stride, int add) {
  const int64_t tiles = (l->n + LANES - 1) / LANES, width = l->type == INT8 ? 8 : 4;
  const int64_t panels = (tiles + width - 1) / width;
#pragma omp for schedule(static)
  for (int64_t p = 0; p < panels; p++)
    (l->type == INT8 ? code_panel : float_panel)(l, s, rows, p * width, MIN((p + 1) * width, tiles), out, stride, add);
}

/* --------------------------------------------------------------------------------------------- keys, values */

static void rotate(float *head, const float *cosines, const float *sines, int64_t dim) {
  for (int64_t i = 0; i < dim / 2; i++) {
    float a = head[i], b = head[i + dim / 2];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + dim / 2] = b * cosines[i] + a * sines[i];
  }
}

static void keep(const Model *m, const float *head, int64_t index, int values, char *slot) {
  const int64_t dim = m->head_dim, width = m->kv_heads * dim, at = values * width + index * dim;
  if (m->kv_type == FLOAT32) memcpy((float *)slot + at, head, dim * sizeof(float));
  else if (m->kv_type == FLOAT16)
    for (int64_t i = 0; i < dim; i++) ((_Float16 *)slot)[at + i] = (_Float16)head[i];
  else if (m->kv_type == BFLOAT16)
    for (int64_t i = 0; i < dim; i++) {
      uint32_t bits;
      memcpy(&bits, head + i, 4);
      ((uint16_t *)slot)[at + i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
  else {
    float peak = 0;
    for (int64_t i = 0; i < dim; i++) peak = MAX(peak, fabsf(head[i]));
    float to_code = peak > 0 ? 127.0f / peak : 0;
    for (int64_t i = 0; i < dim; i++) ((int8_t *)slot)[at + i] = (int8_t)lrintf(head[i] * to_code);
    ((float *)(slot + 2 * width))[values * m->kv_heads + index] = peak / 127.0f;
  }
}

static void place_row(const Model *m, const Layer *l, const Step *s, int64_t row) {
  const int64_t dim = m->head_dim, num_rotated = m->heads + m->kv_heads;
  float *heads = s->wide + row * (num_rotated + m->kv_heads) * dim;
  const int64_t angle = s->positions[row] * (dim / 2);
  char *slot = l->kv + s->slots[row] * m->slot_bytes;
  for (int64_t h = 0; h < num_rotated; h++) {
    float *head = heads + h * dim;
    const float *norm = h < m->heads ? l->q_norm : l->k_norm;
    if (norm) norm_row(head, norm, m->eps, dim, head);
    rotate(head, m->cosines + angle, m->sines + angle, dim);
    if (h >= m->heads) keep(m, head, h - m->heads, 0, slot);
  }
  for (int64_t h = 0; h < m->kv_heads; h++) keep(m, heads + (num_rotated + h) * dim, h, 1, slot);
}

/* ----------------------------------------------------------------------------------------------- attention */

/* One query row on its way along the keys. */
typedef struct {
  const float *query;
  float *out;       /* the weighted values so far, until they are divided by the weights */
  int64_t position; /* the last that it sees */
  vf peak, sums;    /* the largest score so far, in every lane; the sums of the weights, by lane */
} Query;

/* 16 vectors become their columns. */
INLINE void transpose16(vf p[16]) {
#define SWAP(DISTANCE, LOW, HIGH)                                   \
  for (int i = 0; i < 16; i++)                                      \
    if (!(i & DISTANCE)) {                                          \
      vf a = p[i], b = p[i + DISTANCE];                             \
      p[i] = __builtin_shufflevector(a, b, LOW);                    \
      p[i + DISTANCE] = __builtin_shufflevector(a, b, HIGH);        \
    }
#define LIST(...) __VA_ARGS__
  SWAP(8, LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
       LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
  SWAP(4, LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
       LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
  SWAP(2, LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
       LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
  SWAP(1, LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
       LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
}

/* R queries times T * 16 keys [dim][KEYS]. */
INLINE void score(const Query *queries, const int R, const float *keys, const int T, const int64_t DIM,
                  float *scores) {
  const vf scale = splat(1.0f / sqrtf((float)DIM));
  vf sums[4][4];
  for (int r = 0; r < R; r++)
    for (int t = 0; t < T; t++) sums[r][t] = splat(0);
  for (int64_t d = 0; d < DIM; d++)
    for (int t = 0; t < T; t++) {
      vf key = load(keys + d * KEYS + t * LANES);
      for (int r = 0; r < R; r++) sums[r][t] = fma16(splat(queries[r].query[d]), key, sums[r][t]);
    }
  for (int r = 0; r < R; r++)
    for (int t = 0; t < T; t++) store(scores + r * KEYS + t * LANES, sums[r][t] * scale);
}

INLINE vf max_everywhere(vf x) {
  x = max16(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  x = max16(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  x = max16(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  return max16(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
}

/* The scores of positions `at` and on become weights, relative to the largest score so far; those before `low`
   and after the query's own become 0. Gives what is to become of the weights before them (Milakov and
   Gimelshein 2018): exactly 1 where no score is larger, so that looking at what it does not see changes no bit. */
INLINE float soften(Query *query, float *scores, const int64_t TILES, const int CUT, int64_t at, int64_t low) {
  const vi lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  vf x[KEYS / LANES], peak = query->peak, sums = splat(0);
  for (int64_t t = 0; t < TILES; t++) {
    x[t] = load(scores + t * LANES);
    if (CUT) {
      vi place = lanes + (int32_t)(at + t * LANES);
      vi seen = (place >= (int32_t)low) & (place <= (int32_t)query->position);
      x[t] = pick(seen, x[t], splat(-INFINITY));
    }
    peak = max16(peak, x[t]);
  }
  peak = max_everywhere(peak);
  const vf from = peak[0] == -INFINITY ? splat(0) : peak; /* nothing seen yet: all weights are 0 */
  for (int64_t t = 0; t < TILES; t++) {
    x[t] = exp16(x[t] - from);
    store(scores + t * LANES, x[t]);
    sums += x[t];
  }
  vf factor = exp16(query->peak - from);
  query->peak = peak;
  query->sums = fma16(query->sums, factor, sums);
  return factor[0];
}
APART float soften_whole(Query *query, float *scores) { return soften(query, scores, KEYS / LANES, 0, 0, 0); }
APART float soften_part(Query *query, float *scores, int64_t tiles, int64_t at, int64_t low) {
  return soften(query, scores, tiles, 1, at, low);
}

/* R rows of weights times V * 16 columns of `count` values, added to what is there times its factors. */
INLINE void weigh(Query *queries, const int R, const float *factors, const float *weights, const float *values,
                  int64_t count, int64_t column, const int V, const int64_t DIM) {
  vf sums[4][4];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sums[r][v] = load(queries[r].out + column + v * LANES) * splat(factors[r]);
  for (int64_t at = 0; at < count; at++)
    for (int v = 0; v < V; v++) {
      vf value = load(values + at * DIM + column + v * LANES);
      for (int r = 0; r < R; r++) sums[r][v] = fma16(splat(weights[r * KEYS + at]), value, sums[r][v]);
    }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(queries[r].out + column + v * LANES, sums[r][v]);
}

/* For 1 to 4 queries, 16 columns at a time or 64; functions of their own for the sake of registers, as above. */
typedef void Score(const Query *, const float *, int64_t, float *);
typedef void Weigh(Query *, const float *, const float *, const float *, int64_t, int64_t, int64_t);
#define QUERIES(R, T)                                                                                        \
  APART void score_##R##x##T(const Query *queries, const float *keys, int64_t dim, float *scores) {          \
    score(queries, R, keys, T, dim, scores);                                                                 \
  }                                                                                                          \
  APART void weigh_##R##x##T(Query *queries, const float *factors, const float *weights, const float *values, \
                             int64_t count, int64_t column, int64_t dim) {                                   \
    weigh(queries, R, factors, weights, values, count, column, T, dim);                                      \
  }
QUERIES(1, 1) QUERIES(2, 1) QUERIES(3, 1) QUERIES(4, 1) QUERIES(1, 4) QUERIES(2, 4) QUERIES(3, 4) QUERIES(4, 4)
static Score *const score_tile[] = {0, score_1x1, score_2x1, score_3x1, score_4x1};
static Score *const score_chunk[] = {0, score_1x4, score_2x4, score_3x4, score_4x4};
static Weigh *const weigh_tile[] = {0, weigh_1x1, weigh_2x1, weigh_3x1, weigh_4x1};
static Weigh *const weigh_four[] = {0, weigh_1x4, weigh_2x4, weigh_3x4, weigh_4x4};

/* n queries, at most 4, over one chunk of `count` keys, turned, and values, both as floats. */
static void look(Query *queries, int64_t n, const float *keys, const float *values, int64_t at, int64_t count,
                 int64_t window, int64_t dim) {
  const int64_t tiles = (count + LANES - 1) / LANES;
  float scores[4 * KEYS] __attribute__((aligned(64))), factors[4];
  if (tiles == KEYS / LANES) score_chunk[n](queries, keys, dim, scores);
  else
    for (int64_t t = 0; t < tiles; t++) score_tile[n](queries, keys + t * LANES, dim, scores + t * LANES);
  for (int64_t r = 0; r < n; r++) {
    const int64_t low = window ? queries[r].position - window + 1 : 0;
    const int whole = low <= at && at + KEYS - 1 <= queries[r].position;
    factors[r] = whole ? soften_whole(queries + r, scores + r * KEYS)
                       : soften_part(queries + r, scores + r * KEYS, tiles, at, low);
  }
  int64_t column = 0;
  for (; column + 4 * LANES <= dim; column += 4 * LANES)
    weigh_four[n](queries, factors, scores, values, count, column, dim);
  for (; column < dim; column += LANES) weigh_tile[n](queries, factors, scores, values, count, column, dim);
}

/* Where a position of one sequence is kept. */
INLINE const char *slot_of(const Model *m, const Layer *l, const int32_t *table, int64_t position) {
  const int64_t block = table[position >> m->block_shift], mask = (1 << m->block_shift) - 1;
  return l->kv + ((block << m->block_shift) + (position & mask)) * m->slot_bytes;
}

/* n query rows, of rising positions, over the keys and values of one KV head, a chunk at a time: read once and
   made floats, for all of them. Keys are turned, so that each lane is a key and no sum runs across lanes. */
INLINE void attend(const Model *m, const Layer *l, const int32_t *table, int64_t kv_head, Query *queries,
                   int64_t n, const int TYPE, const int64_t DIM) {
  const int64_t width = m->kv_heads * DIM, key_at = kv_head * DIM, value_at = width + key_at;
  const int64_t last = queries[n - 1].position, window = l->window;
  const int64_t low = window ? MAX(queries[0].position - window + 1, 0) : 0;
  float keys[MAX_DIM * KEYS] __attribute__((aligned(64))), values[MAX_DIM * KEYS] __attribute__((aligned(64)));
  for (int64_t at = low / KEYS * KEYS; at <= last; at += KEYS) {
    const int64_t count = MIN(KEYS, last + 1 - at);
    for (int64_t from = 0; from < count; from += LANES) {
      const char *rows[LANES];
      for (int64_t j = 0; j < LANES; j++) rows[j] = slot_of(m, l, table, MIN(at + from + j, last));
      for (int64_t d = 0; d < DIM; d += LANES) {
        vf turned[LANES];
        for (int64_t j = 0; j < LANES; j++) {
          const float *scales = (const float *)(rows[j] + 2 * width);
          turned[j] = load_kv(rows[j], key_at + d, TYPE);
          vf value = load_kv(rows[j], value_at + d, TYPE);
          if (TYPE == INT8) turned[j] *= splat(scales[kv_head]), value *= splat(scales[m->kv_heads + kv_head]);
          store(values + (from + j) * DIM + d, value);
        }
        transpose16(turned);
        for (int64_t j = 0; j < LANES; j++) store(keys + (d + j) * KEYS + from, turned[j]);
      }
    }
    int64_t r = 0;
    while (r < n && queries[r].position < at) r++;
    for (; r < n; r += 4) look(queries + r, MIN(n - r, 4), keys, values, at, count, window, DIM);
  }
  for (int64_t r = 0; r < n; r++) {
    const vf share = splat(1.0f / sum_lanes(queries[r].sums));
    for (int64_t d = 0; d < DIM; d += LANES) store(queries[r].out + d, load(queries[r].out + d) * share);
  }
}

#define ATTEND(NAME, TYPE, DIM)                                                                                \
  APART void NAME(const Model *m, const Layer *l, const int32_t *table, int64_t kv_head, Query *queries,       \
                  int64_t n) {                                                                                 \
    attend(m, l, table, kv_head, queries, n, TYPE, DIM);                                                       \
  }
ATTEND(attend_f32_64, FLOAT32, 64)
ATTEND(attend_f32_128, FLOAT32, 128)
ATTEND(attend_f32, FLOAT32, m->head_dim)
ATTEND(attend_f16_64, FLOAT16, 64)
ATTEND(attend_f16_128, FLOAT16, 128)
ATTEND(attend_f16, FLOAT16, m->head_dim)
ATTEND(attend_bf16, BFLOAT16, m->head_dim)
ATTEND(attend_i8_64, INT8, 64)
ATTEND(attend_i8_128, INT8, 128)
ATTEND(attend_i8, INT8, m->head_dim)

typedef void Attend(const Model *, const Layer *, const int32_t *, int64_t, Query *, int64_t);

static Attend *attention_for(const Model *m) {
  const int64_t dim = m->head_dim;
  switch (m->kv_type) {
    case FLOAT32: return dim == 64 ? attend_f32_64 : dim == 128 ? attend_f32_128 : attend_f32;
    case FLOAT16: return dim == 64 ? attend_f16_64 : dim == 128 ? attend_f16_128 : attend_f16;
    case BFLOAT16: return attend_bf16;
    default: return dim == 64 ? attend_i8_64 : dim == 128 ? attend_i8_128 : attend_i8;
  }
}

/* One KV head for one group of rows: every query head that reads it, of every row. */
static void attend_group(const Model *m, const Layer *l, const Step *s, int64_t group, int64_t kv_head,
                         Attend *attention) {
  const int64_t ratio = m->heads / m->kv_heads, dim = m->head_dim;
  const int64_t width = (m->heads + 2 * m->kv_heads) * dim;
  const int32_t *table = s->tables + s->group_table[group];
  Query queries[TOGETHER];
  int64_t n = 0;
  for (int64_t i = 0; i < s->group_len[group]; i++) {
    const int64_t row = s->group_row[group] + i;
    for (int64_t h = kv_head * ratio; h < (kv_head + 1) * ratio; h++) {
      float *out = s->heads_out + (row * m->heads + h) * dim;
      memset(out, 0, dim * sizeof(float));
      queries[n++] = (Query){s->wide + row * width + h * dim, out, s->positions[row], splat(-INFINITY), splat(0)};
      if (n == TOGETHER) {
        attention(m, l, table, kv_head, queries, n);
        n = 0;
      }
    }
  }
  if (n) attention(m, l, table, kv_head, queries, n);
}

/* --------------------------------------------------------------------------------------------------- layer */

APART void gate(const float *x, int64_t n, float *out) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    vf g = load(x + i);
    store(out + i, g / (splat(1.0f) + exp16(-g)) * load(x + n + i));
  }
  for (; i < n; i++) out[i] = x[i] / (1.0f + expf(-x[i])) * x[n + i];
}

/* After a barrier: what one thread sees is what all took. */
INLINE void lap(const Model *m, enum Part part, double *since) {
  if (!m->spent || omp_get_thread_num()) return;
  const double now = omp_get_wtime();
  m->spent[part] += now - *since;
  *since = now;
}

void layer(const Model *m, const Layer *l, const Step *s) {
  Attend *attention = attention_for(m);
#pragma omp parallel num_threads(m->threads)
  {
    float row_buffer[m->hidden];
    double since = m->spent ? omp_get_wtime() : 0;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < s->rows; row++) {
      norm_row(s->x + row * m->hidden, l->attn_norm, m->eps, m->hidden, row_buffer);
      give(&l->qkv, s, row, row_buffer);
    }
    lap(m, NORMS, &since);
    multiply(&l->qkv, s, s->rows, s->wide, l->qkv.n, 0);
    lap(m, PRODUCTS, &since);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < s->rows; row++) place_row(m, l, s, row);
    lap(m, PLACING, &since);
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t group = 0; group < s->groups; group++)
      for (int64_t head = 0; head < m->kv_heads; head++) attend_group(m, l, s, group, head, attention);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < s->rows; row++) give(&l->o, s, row, s->heads_out + row * l->o.k);
    lap(m, ATTENTION, &since);
    multiply(&l->o, s, s->rows, s->x, m->hidden, 1);
    lap(m, PRODUCTS, &since);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < s->rows; row++) {
      norm_row(s->x + row * m->hidden, l->ffn_norm, m->eps, m->hidden, row_buffer);
      give(&l->gate_up, s, row, row_buffer);
    }
    lap(m, NORMS, &since);
    multiply(&l->gate_up, s, s->rows, s->wide, l->gate_up.n, 0);
    lap(m, PRODUCTS, &since);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < s->rows; row++) {
      float *wide = s->wide + row * 2 * m->intermediate;
      gate(wide, m->intermediate, wide);
      give(&l->down, s, row, wide);
    }
    lap(m, GATE, &since);
    multiply(&l->down, s, s->rows, s->x, m->hidden, 1);
    lap(m, PRODUCTS, &since);
  }
}

/* Some rows of x [rows, k] through norm and linear, to out [rows, n]. */
void project(const Model *m, const float *norm, const Linear *l, const Step *s, const float *x, float *out) {
#pragma omp parallel num_threads(m->threads)
  {
    float row_buffer[m->hidden];
#pragma omp for schedule(static)
    for (int64_t row = 0; row < s->rows; row++) {
      norm_row(x + row * m->hidden, norm, m->eps, m->hidden, row_buffer);
      give(l, s, row, row_buffer);
    }
    multiply(l, s, s->rows, out, l->n, 0);
  }
}
