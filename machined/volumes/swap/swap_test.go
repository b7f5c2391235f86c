package swap

import (
	"fmt"
	"slices"
	"testing"
)

func TestParseAreas(t *testing.T) {
	const head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	for _, c := range []struct {
		text, want string
		bad        bool
	}{
		{text: head, want: "[]"},
		{text: "", want: "[]"},
		{text: head + "/dev/vdb1                               partition\t262140\t\t8\t\t-2\n", want: "[{/dev/vdb1 268431360 8192}]"},
		{text: head + `/dev/vdb1\040(deleted) partition 4 0 -2` + "\n/dev/vdc1 partition 8 4 -3\n", want: "[{/dev/vdb1 (deleted) 4096 0} {/dev/vdc1 8192 4096}]"},
		{text: head + "/dev/vdb1 partition 4 0\n", bad: true},
		{text: head + "/dev/vdb1 partition -4 0 -2\n", bad: true},
		{text: head + "/dev/vdb1 partition 4 x -2\n", bad: true},
	} {
		got, err := parseAreas(c.text)
		if (err != nil) != c.bad || err == nil && fmt.Sprint(got) != c.want {
			t.Errorf("%q: %v, %v; want %s", c.text, got, err, c.want)
		}
	}
}

// TestZswap checks the state of zswap after the writes for each percentage, and that the last write
// enables zswap.
func TestZswap(t *testing.T) {
	for _, percent := range []int{0, 1, 50} {
		values := map[string]string{zswapEnabled: "Y", zswapPercent: "20", zswapShrinker: "N"}
		all := parameters(percent)
		for _, p := range all {
			values[p.name] = p.value
		}
		z, err := parseZswap(values)
		if err != nil || z.Percent != percent || percent > 0 && !z.Shrinker || all[len(all)-1].name != zswapEnabled {
			t.Errorf("%d %%: the state is %+v, %v, after the writes %v", percent, z, err, all)
		}
	}
	if !slices.Contains(parameters(5), parameter{zswapPercent, "5"}) {
		t.Errorf("the writes for 5 %% are %v", parameters(5))
	}
	if z, err := parseZswap(map[string]string{zswapEnabled: "Y", zswapPercent: "x"}); err == nil {
		t.Errorf("an invalid percentage is read as %+v", z)
	}
}
