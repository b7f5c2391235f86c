package network

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// noTags is the result of Tags for a link that is in no VLAN.
const noTags = "none"

// Tags returns the VLANs of a bridge or its member as a text that can be compared. The text has the
// sorted VLAN IDs. The VLAN of frames without a tag (untagged) has the suffix "u". If untagged is
// 0, the bridge drops frames without a tag.
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

// parseTags is the inverse of Tags. It returns the VLAN IDs as keys; the value is true for the VLAN
// of frames without a tag.
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
