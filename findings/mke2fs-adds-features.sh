#!/bin/bash
# mke2fs 1.47 adds the features of its option -O to those in mke2fs.conf, also if -O lists all features of ext4 by name.
#
# So the result depends on the mke2fs.conf of the distribution: the same command enables orphan_file and metadata_csum_seed with the
# file of Debian 13 (e2fsprogs 1.47.2), and not with that of Debian 12 (1.47.0), whose e2fsck may skip the check of a file system with
# orphan_file (debian/changelog, 1.47.2~rc1-1). A list that begins with "none" replaces the features (mke2fs(8): 'The pseudo-file system
# feature "none" will clear all file system features').
#
# Seen on 2026-11-28 with e2fsprogs 1.47.0 and 1.47.2:
#   Debian 12:          -
#   Debian 13:          orphan_file metadata_csum_seed
#   Debian 13, "none,": -
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export PATH=$PATH:/usr/sbin
mke2fs -V 2>&1 | head -1
ext4=has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
all=$ext4,resize_inode,dir_index,filetype,sparse_super,large_file,ext_attr
config() { # FEATURES: the relevant lines of Debian's file
	printf '[defaults]\n\tbase_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr\n'
	printf '[fs_types]\n\text4 = {\n\t\tfeatures = %s\n\t}\n\tsmall = {\n\t\tinode_ratio = 4096\n\t}\n' "$1"
}
config $ext4 >12.conf
config $ext4,metadata_csum_seed,orphan_file >13.conf
added() { # CONFIG FEATURES: the features that were not asked for
	rm -f image
	truncate -s 64M image
	MKE2FS_CONFIG=$1 mke2fs -q -F -t ext4 -O "$2" image
	dumpe2fs -h image 2>/dev/null | sed -n 's/^Filesystem features: *//p' | tr ' ' '\n' | grep -vxF "$(tr , '\n' <<<"$all")" | paste -sd' '
}
bookworm=$(added 12.conf "$all") || true
trixie=$(added 13.conf "$all") || true
none=$(added 13.conf "none,$all") || true
echo "Debian 12:          ${bookworm:--}"
echo "Debian 13:          ${trixie:--}"
echo "Debian 13, \"none,\": ${none:--}"
test "$bookworm/$trixie/$none" = "/orphan_file metadata_csum_seed/"
