package orlop

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestKernelPackages checks that `make kernel` runs each package with a test that needs root or the
// product kernel. Other runs skip these tests, so they do not notice a failure.
func TestKernelPackages(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var run []string
	for _, list := range regexp.MustCompile(`(?m)^KERNEL +:= (.*)$|^\tORLOP_KERNEL=\S+ \$\(TEST\) -count=1 (.*)$`).FindAllStringSubmatch(string(makefile), -1) {
		run = append(run, strings.Fields(list[1]+list[2])...)
	}
	for _, name := range run {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("the Makefile names %s: %v", name, err)
		}
	}
	skips := regexp.MustCompile(`t\.Skipf?\("([^"]*)"`)
	needs := regexp.MustCompile(`\broot\b|kernel`)
	found := 0
	for _, f := range files(t) {
		if !f.test || f.pkg == "" {
			continue
		}
		for _, skip := range skips.FindAllStringSubmatch(f.src, -1) {
			if !needs.MatchString(skip[1]) {
				continue
			}
			found++
			if of := "./" + f.pkg; !slices.Contains(run, of) {
				t.Errorf("%s skips a test (%s); add %s to KERNEL in the Makefile", f.path, skip[1], of)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d skipped tests were found", found)
	}
}
