package outdated

import (
	"go/version"
	"strings"
)

// toolchainItem compares the Go version that builds the image with the published versions. The
// versions in f do not have the prefix "go".
func toolchainItem(used string, f Facts) Item {
	i := Item{Kind: KindGo, Name: "go", Component: "Go", Files: []string{"the go command"}, Pinned: used}
	if reason, _ := f.refusal(); reason != "" {
		i.unanswered = reason
	}
	for _, v := range f.Versions {
		v = "go" + v
		if !version.IsValid(v) || strings.Contains(v, "rc") || strings.Contains(v, "beta") || version.Compare(v, used) <= 0 {
			continue
		}
		if i.Newest == "" || version.Compare(v, i.Newest) > 0 {
			i.Newest = v
		}
		if version.Lang(v) == version.Lang(used) && (i.Patch == "" || version.Compare(v, i.Patch) > 0) {
			i.Patch = v
		}
	}
	if i.Patch == i.Newest {
		i.Patch = ""
	}
	return i
}
