package rotation

import (
	"fmt"
	"strings"
	"testing"
)

// TestKeyStates checks the state and the next step of a rotation that follow from the encryption
// keys of a machine. The texts have the key that encrypts before the plus sign, and the other keys
// after it.
func TestKeyStates(t *testing.T) {
	show := func(s encryptionKeys) string { return strings.TrimSpace(s.own + " + " + strings.Join(s.accepted, " ")) }
	for _, c := range []struct {
		s    encryptionKeys
		at   state
		then string
	}{
		{encryptionKeys{own: "old"}, stateBefore, "old + next"},
		{encryptionKeys{own: "old", accepted: []string{"next"}}, accepted, "next + old"},
		{encryptionKeys{own: "next", accepted: []string{"old"}}, issues, "next +"},
		{encryptionKeys{own: "next"}, newOnly, "next +"},
		// The machine has other keys from a restore, or from a rotation to another new key. Only
		// the last step removes keys that decrypt.
		{encryptionKeys{own: "old", accepted: []string{"older"}}, stateBefore, "old + older next"},
		{encryptionKeys{own: "old", accepted: []string{"older", "next"}}, accepted, "next + old older"},
		{encryptionKeys{own: "next", accepted: []string{"old", "older"}}, issues, "next +"},
	} {
		if at := c.s.state("next"); at != c.at {
			t.Errorf("%s: the machine is in state %d, want %d", show(c.s), at, c.at)
		}
		if then := show(c.s.step("next")); then != c.then {
			t.Errorf("%s: the next step leads to %s, want %s", show(c.s), then, c.then)
		}
	}
}

// TestEverySecretReadable checks two machines, of which one is a step ahead of the other. Each must
// decrypt the Secrets that the other one encrypts. The last step is an exception: a machine after
// it need not decrypt with the old key, because all Secrets are re-encrypted before this step.
func TestEverySecretReadable(t *testing.T) {
	reads := func(s encryptionKeys, key string) bool {
		return strings.Contains(" "+s.own+" "+strings.Join(s.accepted, " ")+" ", " "+key+" ")
	}
	s := encryptionKeys{own: "old"}
	for s.state("next") != newOnly {
		then := s.step("next")
		if !reads(then, s.own) && s.state("next") != issues || !reads(s, then.own) {
			t.Errorf("a machine with %+v and a machine with %+v: one cannot decrypt the Secrets of the other", s, then)
		}
		s = then
	}
}

// TestCheckEncryptionKeys checks that checkEncryptionKeys rejects a call that does not name all
// control-plane machines of a cluster, and a machine without the encryption key of the file.
func TestCheckEncryptionKeys(t *testing.T) {
	three := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	machines := 0
	of := func(own string, members []string, accepted ...string) encryptionKeys {
		machines++
		return encryptionKeys{own: own, accepted: accepted, role: machineRole{machine: fmt.Sprint(machines), controlPlane: true, controlPlanes: members}}
	}
	twice := of("old", three)
	for name, c := range map[string]struct {
		all  []encryptionKeys
		want string
	}{
		"one machine":              {[]encryptionKeys{of("old", nil)}, ""},
		"three machines":           {[]encryptionKeys{of("old", three), of("next", three, "old"), of("old", three, "next")}, ""},
		"one machine and a worker": {[]encryptionKeys{of("old", three[:1]), {}}, ""},
		"all steps done, but the file has the old key": {[]encryptionKeys{of("next", nil)}, ""},
		"a machine is not named":                       {[]encryptionKeys{of("old", three), of("old", three)}, "has 3 control-plane machines (10.0.0.1, 10.0.0.2, 10.0.0.3), and 2 of the named machines"},
		"a machine is named by two addresses":          {[]encryptionKeys{twice, twice, of("old", three)}, "and 2 of the named machines"},
		"a worker in place of a control-plane machine": {[]encryptionKeys{of("old", three), of("old", three), {}}, "and 2 of the named machines"},
		"a machine of another cluster":                 {[]encryptionKeys{of("old", nil), of("foreign", nil)}, "machine m1: does not have the encryption key"},
		"workers only":                                 {[]encryptionKeys{{}, {}}, "no machine has an encryption key"},
	} {
		var names []string
		for i := range c.all {
			names = append(names, fmt.Sprintf("m%d", i))
		}
		err := checkEncryptionKeys(names, c.all, "old", "next")
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestReadEncryptionKeys checks the encryption keys and the control-plane machines that are read
// from the topic and the documents of a machine. A worker has no encryption keys.
func TestReadEncryptionKeys(t *testing.T) {
	documents := "kind: Machine\nspec: {}\n---\nkind: Cluster\nspec: {controlPlanes: [10.0.0.1, 10.0.0.2]}\n"
	s, err := readEncryptionKeys([]byte(`{"present":true,"encryptionKeys":["a","b"]}`), []byte(documents))
	if err != nil || s.own != "a" || fmt.Sprint(s.accepted, s.role.controlPlanes) != "[b] [10.0.0.1 10.0.0.2]" {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := readEncryptionKeys([]byte(`{"present":true}`), []byte("kind: Machine\n")); err != nil || s.own != "" {
		t.Errorf("a worker has the encryption keys %+v, %v", s, err)
	}
}
