package network

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// noTags are the Tags of a link in no VLAN.
const noTags = "none"

// Tags returns the VLANs of a member of a bridge, or of the bridge itself, as a text that can be
// compared: the sorted IDs, of which the VLAN of the frames without a tag has the suffix "u". 0:
// frames without a tag are dropped.
func Tags(ids []int, untagged int) string {
	if untagged != 0 {
		ids = append(slices.Clone(ids), untagged)
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if len(ids) == 0 {
		return noTags
	}
	var parts []string
	for _, id := range ids {
		if id == untagged {
			parts = append(parts, fmt.Sprintf("%du", id))
		} else {
			parts = append(parts, strconv.Itoa(id))
		}
	}
	return strings.Join(parts, " ")
}

// parseTags is the inverse of Tags: by ID whether its frames have no tag.
func parseTags(tags string) map[int]bool {
	out := map[int]bool{}
	for part := range strings.FieldsSeq(tags) {
		number, untagged := strings.CutSuffix(part, "u")
		if id, err := strconv.Atoi(number); err == nil {
			out[id] = untagged
		}
	}
	return out
}
