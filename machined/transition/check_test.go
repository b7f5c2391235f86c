package transition

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestCheckCAChange checks that the CAs of a cluster can only be replaced step by step.
func TestCheckCAChange(t *testing.T) {
	made := func(life time.Duration, at time.Time) config.Certificate {
		ca, err := pki.NewCAAt("ca", life, at)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.ParseCertificate(string(ca.CertPEM()))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	now := time.Now()
	a, b, c, expired := made(time.Hour, now), made(time.Hour, now), made(time.Hour, now), made(time.Hour, now.Add(-2*time.Hour))
	none := config.Certificate{}
	list := func(all ...config.Certificate) []config.Certificate { return all }
	for name, step := range map[string]struct {
		was, is         config.Certificate   // the issuing CA before and after the change
		accepted, still []config.Certificate // the accepted CAs before and after the change
		ok              bool
	}{
		"no change":                    {a, a, nil, nil, true},
		"accept a second CA":           {a, a, nil, list(b), true},
		"issue by the accepted CA":     {a, b, list(b), list(a), true},
		"issue, with a third CA":       {a, b, list(c, b), list(c, a), true},
		"drop the former CA":           {b, b, list(a), nil, true},
		"issue by the former CA again": {b, a, list(a), list(b), true},
		"another CA in one step":       {a, b, nil, nil, false},
		"new CA not accepted before":   {a, b, list(c), list(a), false},
		"former CA not accepted after": {a, b, list(b), list(c), false},
		"after the former CA expired":  {expired, b, nil, nil, true},
		"the first CA":                 {none, b, nil, nil, true},
		"no CA any more":               {a, none, nil, nil, false},
	} {
		if err := checkCAChange("kubernetes", step.was, step.is, step.accepted, step.still, now).Err(); (err == nil) != step.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheckEncryptionKeys checks that the encryption key can only be replaced step by step, and
// which keys a change drops.
func TestCheckEncryptionKeys(t *testing.T) {
	key := func(name byte) config.EncryptionKey {
		if name == '-' {
			return config.EncryptionKey{}
		}
		return config.NewEncryptionKey([32]byte{name})
	}
	// A step has two words: the keys before and after the change. The first letter of a word is the
	// encryption key, or - for no key. The other letters are accepted keys.
	read := func(letters string) config.ClusterSpec {
		s := config.ClusterSpec{SecretsEncryptionKey: key(letters[0])}
		for _, letter := range letters[1:] {
			s.AcceptedEncryptionKeys = append(s.AcceptedEncryptionKeys, key(byte(letter)))
		}
		return s
	}
	for step, c := range map[string]struct {
		ok   bool
		gone string
	}{
		"a a":     {true, ""},
		"a ab":    {true, ""},
		"ab ba":   {true, ""},
		"ba b":    {true, "a"},
		"ba ab":   {true, ""},
		"ab a":    {true, "b"},
		"acb bac": {true, ""},
		"abc ba":  {true, "c"},
		"a b":     {false, "a"},
		"a ba":    {false, ""},
		"ab b":    {false, "a"},
		"- a":     {true, ""},
	} {
		before, after, _ := strings.Cut(step, " ")
		was, is := read(before), read(after)
		if err := checkEncryptionKeys(was, is).Err(); (err == nil) != c.ok {
			t.Errorf("%s: %v", step, err)
		}
		configured := func(s config.ClusterSpec) *config.Config { return &config.Config{Cluster: &config.Cluster{Spec: s}} }
		want := ""
		if c.gone != "" {
			want = key(c.gone[0]).Name()
		}
		if gone := strings.Join(DroppedKeys(configured(was), configured(is)), " "); gone != want {
			t.Errorf("%s: the dropped keys are %q, want %q", step, gone, want)
		}
	}
	if gone := DroppedKeys(nil, &config.Config{}); gone != nil {
		t.Errorf("a machine without a configuration drops the keys %q", gone)
	}
}

// keyManager returns a Cluster document with an encryption key and a key manager. state is "none"
// for no key manager, "new" for no keys at all, or the name of the key manager's key, a or b. An
// upper-case name means that the key manager encrypts.
func keyManager(state string) config.ClusterSpec {
	s := config.ClusterSpec{SecretsEncryptionKey: config.NewEncryptionKey([32]byte{1})}
	switch state {
	case "new":
		return config.ClusterSpec{}
	case "none":
		return s
	}
	s.Kubernetes.APIServer.KMS = &config.KMS{Encrypt: state == strings.ToUpper(state), Transit: &config.Transit{Mount: "transit", Key: strings.ToLower(state)}}
	return s
}

// TestCheckKMS checks that a key manager may encrypt only after it was configured to decrypt, and
// may be removed only after it has ceased to encrypt. It also checks the results of DroppedKeys and
// otherKeys. A step has two words: the states before and after the change, as for keyManager.
func TestCheckKMS(t *testing.T) {
	for step, c := range map[string]struct{ ok, drops, otherKeys bool }{
		"none none": {ok: true},
		"none a":    {ok: true, otherKeys: true},
		"a A":       {ok: true, otherKeys: true},
		"A A":       {ok: true},
		"A a":       {ok: true, otherKeys: true},
		"a none":    {ok: true, drops: true, otherKeys: true},
		"none A":    {otherKeys: true},
		"A none":    {drops: true, otherKeys: true},
		"a b":       {drops: true, otherKeys: true},
		"A B":       {drops: true, otherKeys: true},
		"new A":     {ok: true, otherKeys: true},
	} {
		before, after, _ := strings.Cut(step, " ")
		was, is := keyManager(before), keyManager(after)
		if err := checkKMS(was, is).Err(); (err == nil) != c.ok {
			t.Errorf("%s: %v", step, err)
		}
		from, to := &config.Config{Cluster: &config.Cluster{Spec: was}}, &config.Config{Cluster: &config.Cluster{Spec: is}}
		if got := DroppedKeys(from, to); (len(got) == 1 && got[0] == was.Kubernetes.APIServer.KMS.Name()) != c.drops {
			t.Errorf("%s: DroppedKeys returns %q", step, got)
		}
		if got := otherKeys(from, to); got != c.otherKeys {
			t.Errorf("%s: otherKeys returns %t", step, got)
		}
	}
	moved := keyManager("A")
	moved.Kubernetes.APIServer.KMS.Transit.Endpoint = config.Endpoint{Host: "vault.example.com", Port: 8200}
	if err := checkKMS(keyManager("A"), moved).Err(); err != nil {
		t.Errorf("another address: %v", err)
	}
}

// TestWithPresentKMS checks that an earlier configuration gets exactly the present key manager, or
// no key manager if there is none at present. No field of the earlier key manager remains.
func TestWithPresentKMS(t *testing.T) {
	parsed, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	for name, present := range map[string]*config.KMS{"no present key manager": nil, "another present key manager": {Transit: &config.Transit{
		Endpoint: config.Endpoint{Host: "vault.example.com", Port: 8200}, Mount: "transit", Key: "other",
		AppRole: &config.AppRole{Mount: "approle", RoleID: "r", SecretID: config.NewSecret("s")},
	}}} {
		cluster := *parsed.Cluster
		cluster.Spec.Kubernetes.APIServer.KMS = present
		now := *parsed
		now.Cluster = &cluster
		text, err := WithPresentKeys(config.Marshal(parsed), config.Marshal(&now))
		if err != nil {
			t.Fatal(err)
		}
		back, problems := config.Parse("back", text)
		if err := problems.Err(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if changes := config.Changes(&now, back); len(changes) > 0 {
			t.Errorf("%s: the result differs from the present configuration: %q", name, changes)
		}
	}
}

// TestWithPresentKeys checks that an earlier configuration gets the present encryption keys, and
// that its other fields stay.
func TestWithPresentKeys(t *testing.T) {
	parsed, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	earlier := config.Marshal(parsed)
	if same, err := WithPresentKeys(earlier, earlier); err != nil || string(same) != string(earlier) {
		t.Errorf("the configuration changes although the keys are the same: %v", err)
	}
	cluster := *parsed.Cluster
	cluster.Spec.SecretsEncryptionKey, cluster.Spec.AcceptedEncryptionKeys = config.NewEncryptionKey([32]byte{7}), nil
	cluster.Spec.Kubernetes.MaxPods = 42
	now := *parsed
	now.Cluster = &cluster
	text, err := WithPresentKeys(earlier, config.Marshal(&now))
	if err != nil {
		t.Fatal(err)
	}
	back, problems := config.Parse("back", text)
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	if otherKeys(back, &now) || back.Cluster.Spec.Kubernetes.MaxPods != parsed.Cluster.Spec.Kubernetes.MaxPods {
		t.Errorf("keys %v, at most %d pods", back.Cluster.Spec.EncryptionKeys(), back.Cluster.Spec.Kubernetes.MaxPods)
	}
	if kept, err := WithPresentKeys([]byte("nonsense"), earlier); err != nil || string(kept) != "nonsense" {
		t.Errorf("an unreadable configuration is returned as %q, %v", kept, err)
	}
}

// TestCheckPodRoutes checks that IPv6 pod networks without encapsulation need an IPv6 address of
// the machine.
func TestCheckPodRoutes(t *testing.T) {
	four, six := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")
	at4, at6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00:77::1")
	for name, c := range map[string]struct {
		by    config.Encapsulation
		pods  []netip.Prefix
		have  []netip.Addr
		given []netip.Prefix
		ok    bool
	}{
		"IPv4 alone":                                  {config.EncapsulationNone, []netip.Prefix{four}, []netip.Addr{at4}, nil, true},
		"a tunnel":                                    {config.EncapsulationVXLAN, []netip.Prefix{four, six}, []netip.Addr{at4}, nil, true},
		"the machine has an IPv6 address":             {config.EncapsulationNone, []netip.Prefix{four, six}, []netip.Addr{at4, at6}, nil, true},
		"the configuration adds an IPv6 address":      {config.EncapsulationNone, []netip.Prefix{four, six}, []netip.Addr{at4}, []netip.Prefix{netip.PrefixFrom(at6, 64)}, true},
		"the addresses are unknown":                   {config.EncapsulationNone, []netip.Prefix{four, six}, nil, nil, true},
		"no IPv6 address":                             {config.EncapsulationNone, []netip.Prefix{four, six}, []netip.Addr{at4}, nil, false},
		"the configuration adds an IPv4 address":      {config.EncapsulationNone, []netip.Prefix{four, six}, []netip.Addr{at4}, []netip.Prefix{netip.PrefixFrom(at4, 24)}, false},
		"the configuration adds a link-local address": {config.EncapsulationNone, []netip.Prefix{six}, []netip.Addr{at4}, []netip.Prefix{netip.MustParsePrefix("fe80::1/64")}, false},
	} {
		next := &config.Config{Cluster: &config.Cluster{}}
		next.Cluster.Spec.Networks = config.ClusterNetworks{Pods: c.pods, Encapsulation: c.by}
		next.Network.Spec.Links = []config.Link{{Name: "eth0", Addresses: c.given}}
		if err := checkPodRoutes(next, c.have).Err(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheckReserved checks that reservations for the system leave memory and CPU for pods.
// Otherwise the kubelet would not start.
func TestCheckReserved(t *testing.T) {
	has := Machine{Memory: 4 << 30, CPUs: 2}
	for _, c := range []struct {
		memory config.Bytes
		cpu    config.MilliCPU
		cpus   config.CPUSet
		want   string
	}{
		{512 << 20, 200, "", ""},
		{2 << 30, 1999, "1", ""},
		{2<<30 + 1, 200, "", "Machine.spec.reserved.memory: "},
		{512 << 20, 2000, "", "Machine.spec.reserved.cpu: 2 are all of the machine's 2 processors"},
		{512 << 20, 200, "0-1", "Machine.spec.reserved.cpus: 0-1 are all of the machine's 2 processors"},
		{512 << 20, 200, "0,2", "Machine.spec.reserved.cpus: the machine has no processor 2; name processors from 0 to 1"},
	} {
		err := checkReserved(config.Reserved{Memory: c.memory, CPU: c.cpu, CPUs: c.cpus}, has).Err()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("memory %v, CPU %v: %v, want %q", c.memory, c.cpu, err, c.want)
		}
	}
}

// TestCheckEviction checks that the threshold of free memory leaves memory for pods. Otherwise the
// kubelet would not start.
func TestCheckEviction(t *testing.T) {
	c := config.New("a", config.RoleWorker).WithCluster("c", config.Endpoint{}, config.PKI{}, config.EncryptionKey{})
	c.Machine.Spec.Reserved.Memory = 1 << 30
	for threshold, want := range map[config.Threshold]string{
		{Amount: 100 << 20}: "",
		{Percent: 50}:       "",
		{Amount: 3<<30 - 1}: "",
		{Amount: 3 << 30}:   "eviction.hard.memoryAvailable: 3GiB and Machine.spec.reserved.memory, 1GiB, are all of the machine's 4096 MiB",
		{Amount: 1<<63 - 1}: "are all of the machine's 4096 MiB",
	} {
		c.Cluster.Spec.Kubernetes.Kubelet.Eviction.Hard.MemoryAvailable = threshold
		err := CheckMachine(c, Machine{Memory: 4 << 30, CPUs: 2}).Err()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", threshold, err, want)
		}
	}
}

// TestCheckMemorySysctls checks that kernel parameters, each alone and all together, leave enough
// memory for the system.
func TestCheckMemorySysctls(t *testing.T) {
	const small, large = 1400 * mib, 64 << 30
	for _, c := range []struct {
		memory  int64
		sysctls map[string]string
		want    string
	}{
		{small, nil, ""},
		{small, map[string]string{"vm.nr_hugepages": "350"}, ""},
		{small, map[string]string{"vm.nr_hugepages": "351"}, `Machine.spec.sysctls["vm.nr_hugepages"]: with 351, 698 of 1400 MiB of the machine's memory would remain for the system and its pods; leave at least 700 MiB`},
		{small, map[string]string{"vm.nr_hugepages": "300", "vm.min_free_kbytes": "102400"}, `Machine.spec.sysctls["vm.min_free_kbytes"]: with 102400, 650 of 1400 MiB of the machine's memory would remain for the system and its pods; leave at least 700 MiB`},
		{small, map[string]string{"vm.min_free_kbytes": "102400"}, ""},
		{large, map[string]string{"vm.nr_hugepages": "32000"}, ""},
		{large, map[string]string{"vm.nr_hugepages": "1000000"}, `Machine.spec.sysctls["vm.nr_hugepages"]: with 1000000, 0 of 65536 MiB of the machine's memory would remain for the system and its pods; leave at least 700 MiB`},
		{large, map[string]string{"vm.nr_hugepages": "9223372036854775807"}, `Machine.spec.sysctls["vm.nr_hugepages"]: with 9223372036854775807, 0 of 65536 MiB of the machine's memory would remain for the system and its pods; leave at least 700 MiB`},
		{large, map[string]string{"vm.nr_hugepages_mempolicy": "0x7fff"}, `Machine.spec.sysctls["vm.nr_hugepages_mempolicy"]: with 0x7fff, 2 of 65536 MiB of the machine's memory would remain for the system and its pods; leave at least 700 MiB`},
		{large, map[string]string{"vm.nr_hugepages": " 99999"}, `Machine.spec.sysctls["vm.nr_hugepages"]: with 99999, 0 of 65536 MiB of the machine's memory would remain for the system and its pods; leave at least 700 MiB`},
		{large, map[string]string{"vm.nr_hugepages": "18446744073709551615"}, `Machine.spec.sysctls["vm.nr_hugepages"]: with 18446744073709551615, 0 of 65536 MiB of the machine's memory would remain for the system and its pods; leave at least 700 MiB`},
		{large, map[string]string{"vm.nr_hugepages": "99999 1"}, `Machine.spec.sysctls["vm.nr_hugepages"]: "99999 1" is not a single number from 0 to 2^64-1`},
		{small, map[string]string{"net.netfilter.nf_conntrack_buckets": "1048576"}, ""},
		{small, map[string]string{"net.netfilter.nf_conntrack_buckets": "100000000"}, `Machine.spec.sysctls["net.netfilter.nf_conntrack_buckets"]: with 100000000, 637 of 1400 MiB of the machine's memory would remain for the system and its pods; leave at least 700 MiB`},
		{large, map[string]string{"vm.min_free_kbytes": "-1"}, `Machine.spec.sysctls["vm.min_free_kbytes"]: "-1" is not a single number from 0 to 2^64-1`},
		{512 * mib, map[string]string{"vm.nr_hugepages": "64"}, ""},
		{0, map[string]string{"vm.nr_hugepages": "64"}, ""},
	} {
		next := config.New("n1", config.RoleWorker)
		next.Machine.Spec.Sysctls = c.sysctls
		got := ""
		if problems := CheckMachine(next, Machine{Memory: c.memory}); len(problems) > 0 {
			got = strings.TrimPrefix(problems.Error(), config.Refused+" ")
		}
		if got != c.want {
			t.Errorf("%v of %d MiB:\n got %s\nwant %s", c.sysctls, c.memory/mib, got, c.want)
		}
	}
}

// TestCheckParts checks that a configuration cannot omit the volume of a part of DATA.
func TestCheckParts(t *testing.T) {
	volume := func(name string, use config.VolumeUse) config.Volume {
		return config.Volume{Metadata: config.Metadata{Name: name}, Spec: config.VolumeSpec{Use: use}}
	}
	parts := map[config.VolumeUse]string{config.UseEtcd: "e"}
	const lost = config.Refused + ` Volume["e"]: etcd of this machine is on this volume, and data are not moved; keep the document, or reset the machine (orlopctl reset --wipe all)`
	for name, c := range map[string]struct {
		volumes []config.Volume
		parts   map[config.VolumeUse]string
		want    string
	}{
		"no part":       {},
		"the same":      {[]config.Volume{volume("x", config.UseMount), volume("e", config.UseEtcd)}, parts, ""},
		"removed":       {nil, parts, lost},
		"another name":  {[]config.Volume{volume("f", config.UseEtcd)}, parts, lost},
		"another use":   {[]config.Volume{volume("e", config.UseLogs)}, parts, lost},
		"a new one":     {[]config.Volume{volume("e", config.UseEtcd), volume("l", config.UseLogs)}, parts, ""},
		"without parts": {[]config.Volume{volume("e", config.UseEtcd)}, nil, ""},
	} {
		next := config.New("n1", config.RoleControlPlane)
		next.Volumes = c.volumes
		got := ""
		if problems := CheckMachine(next, Machine{Parts: c.parts}); len(problems) > 0 {
			got = problems.Error()
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}
