package config

import "testing"

func TestThreshold(t *testing.T) {
	for text, want := range map[string]struct {
		threshold Threshold
		quantity  string
	}{
		"":       {Threshold{}, "0"},
		"5%":     {Threshold{Percent: 5}, "5%"},
		"99%":    {Threshold{Percent: 99}, "99%"},
		"100MiB": {Threshold{Amount: 100 << 20}, "104857600"},
	} {
		var got Threshold
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want.threshold || got.String() != text || got.Quantity() != want.quantity {
			t.Errorf("%q: %+v (%s, %s), %v", text, got, got, got.Quantity(), err)
		}
	}
	for _, text := range []string{"0%", "100%", "%", "1.5%", "-1%", "+1%", "100Mi", "x", "0KiB", "00MiB"} {
		if got := (Threshold{Percent: 7}); got.UnmarshalText([]byte(text)) == nil || got.Percent != 7 {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestCPUSet(t *testing.T) {
	for text, want := range map[string]struct{ size, highest int }{
		"0": {1, 0}, "0-1": {2, 1}, "0-1,8": {3, 8}, "3,5-7,8191": {5, 8191},
	} {
		var got CPUSet
		err := got.UnmarshalText([]byte(text))
		if size, highest := got.Bounds(); err != nil || string(got) != text || size != want.size || highest != want.highest {
			t.Errorf("%q: %d processors up to %d, %v", text, size, highest, err)
		}
	}
	for _, text := range []string{"", ",", "1-", "-1", "1-1", "2-1", "1,1", "2,1", "0-3,2", "8192", "a", "1 2", "+1"} {
		var got CPUSet
		if got.UnmarshalText([]byte(text)) == nil || got != "" {
			t.Errorf("%q: %q", text, got)
		}
	}
	if size, highest := CPUSet("").Bounds(); size != 0 || highest != -1 {
		t.Errorf("bounds of an empty set: %d, %d", size, highest)
	}
}
