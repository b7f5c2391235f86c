package config

import (
	"encoding/json"
	"reflect"
	"testing"
)

// TestImageRules: the image rules of the reference have the same value after they are encoded as
// JSON and parsed. The node gets the rules as JSON.
func TestImageRules(t *testing.T) {
	c, problems := Parse("reference.yaml", []byte(Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	rules := c.Machine.Spec.Node.ImagePolicy
	text, err := json.Marshal(rules)
	check(t, err)
	var got []ImageRule
	check(t, json.Unmarshal(text, &got))
	if len(rules) == 0 || !reflect.DeepEqual(got, rules) || got[0].Keys[0].Public() == nil {
		t.Errorf("%+v, want %+v", got, rules)
	}
	if key := (ImageKey{}).Public(); key != nil {
		t.Errorf("an empty ImageKey has the public key %v", key)
	}
}

func TestRepositoryPattern(t *testing.T) {
	for _, c := range []struct {
		pattern RepositoryPattern
		name    string
		want    bool
	}{
		{"*", "registry.example.com/a", true},
		{"*", "", true},
		{"registry.example.com/*", "registry.example.com/a/b", true},
		{"registry.example.com/*", "registry.example.com.example.net/a", false},
		{"registry.example.com/a", "registry.example.com/a", true},
		{"registry.example.com/a", "registry.example.com/a/b", false},
		{"registry.example.com/a/*", "registry.example.com/a", false},
		{"registry.example.com/a/*", "registry.example.com/ab", false},
		{"registry.example.com/a", "", false},
	} {
		if got := c.pattern.Matches(c.name); got != c.want {
			t.Errorf("%s matches %q: %t, want %t", c.pattern, c.name, got, c.want)
		}
	}
}
