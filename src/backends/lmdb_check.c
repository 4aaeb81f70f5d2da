/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LMDB maps its file and follows the numbers in it without looking twice: one wrong bit ends the process, or turns up
 * as the wrong bucket. So the file is walked here first, by code that believes nothing. It reads pages with pread, for
 * which a bad sector is an error and not a signal, and asks of each what LMDB relies on:
 *
 *   - the two meta pages are of this format, and of two transactions in a row;
 *   - every page that the newer one leads to lies in the file, says its own number and kind, and is reached once;
 *   - the nodes of a page fill its used part exactly, without gap or overlap;
 *   - keys ascend, through a whole tree and between the bounds that its branches set;
 *   - pages, entries and depth are as many as the meta page says;
 *   - pages that are listed as free are in use nowhere.
 *
 * Records have checksums of their own, over key and content. A damaged one concerns one bucket and is no reason to
 * refuse the others: it is counted and told.
 *
 * The file, by the layout of LMDB 0.9: pages of one size; meta pages 0 and 1; two trees, one that lists free pages by
 * the transaction that freed them, and one for the data. A page is a head, an array of the places of its nodes that
 * grows up to `lower`, and the nodes, which grow down to `upper`. A value too long for a page lies in a run of
 * overflow pages, and the node has the number of the first.
 */
#include "backends/lmdb_check.h"

#include <errno.h>
#include <lmdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/address.h"
#include "backends/lmdb_key.h"
#include "core/record.h"

_Static_assert(MDB_VERSION_MAJOR == 0, "this is the file format of LMDB 0.9");

/* ---- The format ---- */

#define MAGIC 0xBEEFC0DEU
#define FORMAT 1
#define PAGE_SIZE_MIN 512
#define PAGE_SIZE_MAX 0x8000
#define DEPTH_MAX 32
#define NO_PAGE (~(size_t)0)

enum { PAGE_BRANCH = 0x01, PAGE_LEAF = 0x02, PAGE_OVERFLOW = 0x04, PAGE_META = 0x08 };
enum { NODE_BIG = 0x01, NODE_DATABASE = 0x02 };

typedef struct page_head {
  size_t number;
  uint16_t pad;
  uint16_t flags;
  uint16_t lower; /* in an overflow page these two are the length of the run, 32 bits */
  uint16_t upper;
} page_head;

typedef struct tree_head {
  uint32_t pad; /* of the free tree: the page size */
  uint16_t flags;
  uint16_t depth;
  size_t branch_pages;
  size_t leaf_pages;
  size_t overflow_pages;
  size_t entries;
  size_t root;
} tree_head;

typedef struct meta_page {
  uint32_t magic;
  uint32_t version;
  size_t address;
  size_t map_size;
  tree_head trees[2];
  size_t last_page;
  size_t transaction;
} meta_page;

enum { TREE_FREE = 0, TREE_DATA = 1 };

#define HEAD_LEN sizeof(page_head)
#define NODE_HEAD_LEN 8

typedef struct page_node {
  unsigned flags;
  size_t key_len;
  size_t value_len; /* leaf */
  size_t child;     /* branch */
  const unsigned char *key;
  const unsigned char *value; /* leaf; of a big one the number of its first page */
  size_t end;                 /* of the node in its page */
} page_node;

static uint16_t read16(const unsigned char *at) {
  uint16_t value;
  memcpy(&value, at, sizeof(value));
  return value;
}

static size_t read_word(const unsigned char *at) {
  size_t value;
  memcpy(&value, at, sizeof(value));
  return value;
}

/* ---- The walk ---- */

typedef struct checker {
  int fd;
  const spile_env *outside;
  spile_error *error;
  size_t page_size;
  size_t page_count; /* that may be in use */
  size_t transaction;
  unsigned char *used; /* a bit for every page */
  size_t used_len;
  unsigned char *pages; /* one for each level of a tree, then two to read runs of overflow pages */
  unsigned char *covered;
  size_t pages_len;
  /* Of the tree that is walked. */
  int tree;
  tree_head found;
  unsigned char last[SPILE__LMDB_KEY_LEN_MAX]; /* the key before, or the bound that a branch has set */
  size_t last_len;
  bool last_is_bound;
  /* Of the data. */
  bool has_secret;
  bool has_ours;
  size_t unreadable; /* records */
} checker;

static int check_fail(const checker *check, size_t page, const char *what) {
  return spile__store_fail(check->error, SPILE_EUNAVAILABLE, SPILE_REASON_CORRUPT,
                           "the LMDB data file is damaged (page %zu %s); \"spile repair\" moves it aside and begins an "
                           "empty one",
                           page, what);
}

static int check_no_memory(spile_error *error) {
  return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "out of memory to check the LMDB data file");
}

/* Reads [offset, offset + len), all of it. */
static int file_read(const checker *check, void *out, size_t len, size_t offset) {
  unsigned char *at = out;
  while (len > 0) {
    ssize_t got = pread(check->fd, at, len, (off_t)offset);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return spile__store_fail(check->error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                               "cannot read the LMDB data file at byte %zu: %s; \"spile repair\" moves it aside and "
                               "begins an empty one",
                               offset, strerror(errno));
    if (got == 0)
      return check_fail(check, check->page_size > 0 ? offset / check->page_size : 0, "is missing, the file was cut");
    at += got;
    offset += (size_t)got;
    len -= (size_t)got;
  }
  return SPILE_OK;
}

/* Marks `count` pages as reached. @return false: one is out of the file, or was reached before */
static bool pages_use(checker *check, size_t first, size_t count) {
  if (first < 2 || first >= check->page_count || count > check->page_count - first)
    return false;
  for (size_t page = first; page < first + count; page++) {
    unsigned char bit = (unsigned char)(1U << page % 8);
    if ((check->used[page / 8] & bit) != 0)
      return false;
    check->used[page / 8] |= bit;
  }
  return true;
}

/* Takes the node apart that begins at `offset`. @return false: it does not fit the page */
static bool node_read(const checker *check, const unsigned char *page, bool leaf, size_t offset, page_node *node) {
  if (offset + NODE_HEAD_LEN > check->page_size)
    return false;
  const unsigned char *at = page + offset;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  size_t low = read16(at);
  size_t high = read16(at + 2);
#else
  size_t high = read16(at);
  size_t low = read16(at + 2);
#endif
  node->flags = read16(at + 4);
  node->key_len = read16(at + 6);
  node->key = at + NODE_HEAD_LEN;
  size_t len = NODE_HEAD_LEN + node->key_len;
  if (leaf) {
    node->value_len = low | high << 16;
    node->value = node->key + node->key_len;
    len += (node->flags & NODE_BIG) != 0 ? sizeof(size_t) : node->value_len;
  } else {
    node->child = low | high << 16;
    if (sizeof(size_t) > 4)
      node->child |= (size_t)((uint64_t)node->flags << 32);
  }
  node->end = offset + len + len % 2;
  return node->end <= check->page_size;
}

/* Asks of the nodes of a page that they fill it from `upper` on, each byte once. */
static int nodes_check(const checker *check, const unsigned char *page, const page_head *head, size_t count) {
  bool leaf = head->flags == PAGE_LEAF;
  size_t filled = 0;
  memset(check->covered, 0, check->page_size);
  for (size_t i = 0; i < count; i++) {
    size_t offset = read16(page + HEAD_LEN + 2 * i);
    page_node node;
    if (offset < head->upper || offset % 2 != 0 || !node_read(check, page, leaf, offset, &node) ||
        memchr(check->covered + offset, 1, node.end - offset) != NULL)
      return check_fail(check, head->number, "has an entry in a wrong place");
    memset(check->covered + offset, 1, node.end - offset);
    filled += node.end - offset;
  }
  return filled == check->page_size - head->upper ? SPILE_OK
                                                  : check_fail(check, head->number, "has gaps between its entries");
}

/* Whether a key may follow; it is then the last one. */
static bool key_follows(checker *check, const page_node *node, bool is_bound) {
  size_t len = node->key_len;
  int order;
  if (check->tree == TREE_FREE) {
    if (len != sizeof(size_t))
      return false;
    size_t last = check->last_len > 0 ? read_word(check->last) : 0;
    size_t key = read_word(node->key);
    order = last < key ? -1 : last > key;
  } else {
    if (len < 1 || len > SPILE__LMDB_KEY_LEN_MAX)
      return false;
    size_t common = len < check->last_len ? len : check->last_len;
    order = memcmp(check->last, node->key, common);
    if (order == 0)
      order = check->last_len < len ? -1 : check->last_len > len;
  }
  if (order > 0 || (order == 0 && (is_bound || !check->last_is_bound)))
    return false;
  memcpy(check->last, node->key, len);
  check->last_len = len;
  check->last_is_bound = is_bound;
  return true;
}

/* The first page of a value that has pages of its own. */
static int overflow_check(checker *check, const page_node *node, size_t *first) {
  *first = read_word(node->value);
  page_head head;
  if (*first < 2 || *first >= check->page_count)
    return check_fail(check, *first, "of a long value lies outside the file");
  int result = file_read(check, &head, sizeof(head), *first * check->page_size);
  if (result != SPILE_OK)
    return result;
  uint32_t count;
  memcpy(&count, &head.lower, sizeof(count));
  size_t needed = (HEAD_LEN - 1 + node->value_len) / check->page_size + 1;
  if (head.number != *first || head.flags != PAGE_OVERFLOW || count < needed || !pages_use(check, *first, count))
    return check_fail(check, *first, "is not that of a long value");
  check->found.overflow_pages += count;
  return SPILE_OK;
}

/* A list of free pages: their number, then each, descending. */
static int free_list_check(checker *check, size_t page, const page_node *node, size_t first_overflow) {
  size_t room = node->value_len / sizeof(size_t);
  if (room < 1)
    return check_fail(check, page, "has a list of free pages that is too short");
  unsigned char *chunk = check->pages + DEPTH_MAX * check->page_size;
  size_t offset = first_overflow * check->page_size + HEAD_LEN;
  size_t in_chunk = check->page_size / sizeof(size_t);
  size_t count = 0;
  size_t before = check->page_count;
  for (size_t i = 0; i < 1 + count; i++) {
    const unsigned char *word = node->value + i * sizeof(size_t);
    if (first_overflow != 0) {
      if (i % in_chunk == 0) {
        size_t left = (room - i) * sizeof(size_t);
        int result =
            file_read(check, chunk, left < check->page_size ? left : check->page_size, offset + i * sizeof(size_t));
        if (result != SPILE_OK)
          return result;
      }
      word = chunk + i % in_chunk * sizeof(size_t);
    }
    size_t value = read_word(word);
    if (i == 0) {
      count = value;
      if (count > room - 1)
        return check_fail(check, page, "has a list of free pages that is longer than its value");
      continue;
    }
    if (value >= before || !pages_use(check, value, 1))
      return check_fail(check, page, "lists as free what is not");
    before = value;
  }
  return SPILE_OK;
}

static int record_check(checker *check, size_t page, const page_node *node) {
  if (spile__lmdb_secret_is_key(node->key, node->key_len)) {
    uint64_t secret[2];
    check->has_secret = true;
    return node->flags == 0 && spile__lmdb_secret_read(secret, node->value, node->value_len)
               ? SPILE_OK
               : check_fail(check, page, "has a damaged hash key");
  }
  spile__lmdb_parts parts;
  spile__state state;
  bool bucket = spile__lmdb_key_split(&parts, node->key, node->key_len);
  check->has_ours = check->has_ours || bucket || node->key[0] == SPILE__LMDB_META;
  if (!bucket || node->flags != 0 ||
      spile__record_decode(node->value, node->value_len, parts.algorithm, node->key, node->key_len, &state) !=
          SPILE_REASON_NONE)
    check->unreadable++;
  return SPILE_OK;
}

static int leaf_node_check(checker *check, size_t page, const page_node *node) {
  size_t first_overflow = 0;
  if (!key_follows(check, node, false))
    return check_fail(check, page, "has keys out of order");
  check->found.entries++;
  bool database = check->tree == TREE_DATA && node->flags == NODE_DATABASE && node->value_len == sizeof(tree_head);
  if (node->flags != 0 && node->flags != NODE_BIG && !database)
    return check_fail(check, page, "has an entry of no known kind");
  if (node->flags == NODE_BIG) {
    int result = overflow_check(check, node, &first_overflow);
    if (result != SPILE_OK)
      return result;
  }
  if (check->tree == TREE_FREE) {
    if (read_word(node->key) > check->transaction)
      return check_fail(check, page, "lists free pages of a transaction that never was");
    return free_list_check(check, page, node, first_overflow);
  }
  return record_check(check, page, node);
}

static int page_read(checker *check, size_t number, unsigned char *page, page_head *head, size_t *count) {
  if (number < 2 || number >= check->page_count)
    return check_fail(check, number, "is led to and lies outside the file");
  int result = file_read(check, page, check->page_size, number * check->page_size);
  if (result != SPILE_OK)
    return result;
  memcpy(head, page, sizeof(*head));
  if (head->number != number)
    return check_fail(check, number, "does not have its own number");
  if (!pages_use(check, number, 1))
    return check_fail(check, number, "is in use twice");
  if (head->lower < HEAD_LEN || head->lower > head->upper || head->upper > check->page_size || head->lower % 2 != 0 ||
      head->upper % 2 != 0)
    return check_fail(check, number, "has impossible bounds");
  *count = (head->lower - HEAD_LEN) / 2;
  return SPILE_OK;
}

/* One page and all below it, `level` levels below the root. */
static int subtree_check(checker *check, size_t number, size_t level, size_t depth) {
  unsigned char *page = check->pages + level * check->page_size;
  page_head head;
  size_t count = 0;
  int result = page_read(check, number, page, &head, &count);
  if (result != SPILE_OK)
    return result;
  bool leaf = level + 1 == depth;
  if (head.flags != (leaf ? PAGE_LEAF : PAGE_BRANCH))
    return check_fail(check, number, "is not of the kind that its place asks for");
  /* LMDB gives up on a branch of one child, but for the free tree's. */
  if (count < (leaf || check->tree == TREE_FREE ? 1U : 2U))
    return check_fail(check, number, "has too few entries");
  result = nodes_check(check, page, &head, count);
  if (leaf)
    check->found.leaf_pages++;
  else
    check->found.branch_pages++;
  for (size_t i = 0; i < count && result == SPILE_OK; i++) {
    page_node node;
    (void)node_read(check, page, leaf, read16(page + HEAD_LEN + 2 * i), &node);
    if (leaf)
      result = leaf_node_check(check, number, &node);
    else if (i > 0 && !key_follows(check, &node, true))
      result = check_fail(check, number, "has keys out of order");
    else
      result = subtree_check(check, node.child, level + 1, depth);
  }
  return result;
}

static int tree_check(checker *check, int tree, const tree_head *head) {
  check->tree = tree;
  check->found = (tree_head){0};
  check->last_len = 0;
  check->last_is_bound = false;
  if (head->root != NO_PAGE) {
    if (head->depth < 1 || head->depth > DEPTH_MAX)
      return check_fail(check, head->root, "begins a tree of impossible depth");
    int result = subtree_check(check, head->root, 0, head->depth);
    if (result != SPILE_OK)
      return result;
  } else if (head->depth != 0) {
    return check_fail(check, 0, "or 1 says that a tree is empty and is not");
  }
  const tree_head *found = &check->found;
  if (found->branch_pages != head->branch_pages || found->leaf_pages != head->leaf_pages ||
      found->overflow_pages != head->overflow_pages || found->entries != head->entries)
    return check_fail(check, 0, "or 1 counts other pages or entries than there are");
  return SPILE_OK;
}

/* ---- The meta pages ---- */

static int meta_read(checker *check, size_t number, meta_page *meta) {
  unsigned char bytes[HEAD_LEN + sizeof(*meta)];
  page_head head;
  int result = file_read(check, bytes, sizeof(bytes), number * check->page_size);
  if (result != SPILE_OK)
    return result;
  memcpy(&head, bytes, sizeof(head));
  memcpy(meta, bytes + HEAD_LEN, sizeof(*meta));
  if (head.flags != PAGE_META || meta->magic != MAGIC || meta->version != FORMAT)
    return check_fail(check, number, "is not the head of an LMDB file");
  size_t page_size = meta->trees[TREE_FREE].pad;
  if (page_size < PAGE_SIZE_MIN || page_size > PAGE_SIZE_MAX || (page_size & (page_size - 1)) != 0 ||
      (number > 0 && page_size != check->page_size))
    return check_fail(check, number, "has an impossible page size");
  if (meta->trees[TREE_FREE].flags != MDB_INTEGERKEY || meta->trees[TREE_DATA].flags != 0)
    return check_fail(check, number, "has settings that are not those of this store");
  check->page_size = page_size;
  return SPILE_OK;
}

/*
 * Transactions write the two in turn, odd ones page 1, so the numbers differ by one, but for the new file's, where both
 * are 0. A damaged number shows in that, unless it became smaller by exactly two: then the state before the last
 * transaction passes for the newest, and that one is lost.
 */
static int metas_read(checker *check, size_t file_size, meta_page *newest) {
  meta_page metas[2];
  for (size_t i = 0; i < 2; i++) {
    int result = meta_read(check, i, &metas[i]);
    if (result != SPILE_OK)
      return result;
  }
  size_t even = metas[0].transaction;
  size_t odd = metas[1].transaction;
  bool fresh = even == 0 && odd == 0;
  if (!fresh && (even % 2 != 0 || odd % 2 != 1 || (odd != even + 1 && even != odd + 1)))
    return check_fail(check, odd > even, "has a number of no transaction");
  *newest = metas[odd > even];
  if (newest->last_page < 1 || newest->last_page >= file_size / check->page_size)
    return check_fail(check, newest->last_page, "is missing, the file was cut");
  check->page_count = newest->last_page + 1;
  check->transaction = newest->transaction;
  return SPILE_OK;
}

/* ---- The file ---- */

static int check_prepare(checker *check) {
  /* Mapped, since a file of a large map needs many bits and touches few of them. */
  check->used_len = check->page_count / 8 + 1;
  check->pages_len = (DEPTH_MAX + 2) * check->page_size;
  void *used = mmap(NULL, check->used_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check->used = used != MAP_FAILED ? used : NULL;
  check->pages = check->outside->allocate(check->outside->allocate_user, NULL, check->pages_len);
  if (check->used == NULL || check->pages == NULL)
    return check_no_memory(check->error);
  check->covered = check->pages + (DEPTH_MAX + 1) * check->page_size;
  return SPILE_OK;
}

static void check_finish(checker *check) {
  if (check->used != NULL)
    (void)munmap(check->used, check->used_len);
  if (check->pages != NULL)
    (void)check->outside->allocate(check->outside->allocate_user, check->pages, 0);
}

static void check_tell(const checker *check) {
  if (check->unreadable == 0)
    return;
  static const char told[] = "records cannot be read (damaged, or of a later version): their buckets fail until they "
                             "are cleared, or begin full where the key is damaged";
  char line[240];
  (void)snprintf(line, sizeof(line), "lmdb: %zu %s", check->unreadable, told);
  check->outside->log(check->outside->log_user, SPILE_LOG_WARNING, line);
}

static int file_check(checker *check, size_t file_size) {
  meta_page meta;
  int result = metas_read(check, file_size, &meta);
  if (result == SPILE_OK)
    result = check_prepare(check);
  if (result == SPILE_OK)
    result = tree_check(check, TREE_DATA, &meta.trees[TREE_DATA]);
  if (result == SPILE_OK)
    result = tree_check(check, TREE_FREE, &meta.trees[TREE_FREE]);
  if (result != SPILE_OK)
    return result;
  if (meta.trees[TREE_DATA].entries == 0 || check->has_secret) {
    check_tell(check);
    return SPILE_OK;
  }
  if (check->has_ours)
    return check_fail(check, 0, "leads to buckets without their hash key");
  return spile__store_fail(
      check->error, SPILE_EUNAVAILABLE, SPILE_REASON_FOREIGN,
      "the LMDB directory holds another program's database; give the store a directory of its own");
}

int spile__lmdb_check(int fd, const spile_env *outside, bool *unfinished, spile_error *error) {
  *unfinished = false;
  checker check = {.fd = fd, .outside = outside, .error = error};
  struct stat status;
  if (fstat(fd, &status) != 0)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO, "cannot read the LMDB data file: %s",
                             strerror(errno));
  size_t size = (size_t)status.st_size;
  *unfinished = size == 0;
  if (size == 0)
    return SPILE_OK;
  /* One meta page of no transaction and no second one: whoever wrote them came no further. */
  meta_page first;
  spile_error ignored = {0};
  checker glance = {.fd = fd, .outside = outside, .error = &ignored};
  *unfinished = meta_read(&glance, 0, &first) == SPILE_OK && first.transaction == 0 && size < 2 * glance.page_size;
  if (*unfinished)
    return SPILE_OK;
  int result = file_check(&check, size);
  check_finish(&check);
  return result;
}
