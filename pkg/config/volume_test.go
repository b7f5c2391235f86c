package config

import (
	"strings"
	"testing"
)

// volumeDocuments are the documents of a machine with two volumes.
const volumeDocuments = `apiVersion: orlop.dev/v1alpha1
kind: Machine
metadata: {name: a}
spec: {role: worker}
---
apiVersion: orlop.dev/v1alpha1
kind: Volume
metadata: {name: fast}
spec: {disk: {serial: "X*"}, size: 2GiB, use: storageClass, mountOptions: [noexec]}
---
apiVersion: orlop.dev/v1alpha1
kind: Volume
metadata: {name: logs}
spec: {disk: {match: disk.rotational}, use: logs}
`

// TestVolumes checks that several Volume documents are parsed, printed, compared and patched by
// name.
func TestVolumes(t *testing.T) {
	before, problems := Parse("", []byte(volumeDocuments))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if len(before.Volumes) != 2 || before.Volumes[0].Spec.Size != 2<<30 || !before.Volumes[0].Spec.Has(OptionNoExec) || before.Volumes[1].Spec.Use != UseLogs {
		t.Fatalf("%+v", before.Volumes)
	}
	if again, problems := Parse("", Marshal(before)); len(problems) > 0 || !Equal(before, again) {
		t.Errorf("Marshal and Parse change the configuration: %v, %v", problems, Changes(before, again))
	}
	merged, err := Merge([]byte(volumeDocuments), []byte("kind: Volume\nmetadata: {name: fast}\nspec: {size: 3GiB}\n---\nkind: Volume\nmetadata: {name: logs}\nspec: null\n"))
	check(t, err)
	after, problems := Parse("", merged)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := "Volume[\"fast\"].spec.size: 2GiB → 3GiB\n" + `Volume["logs"].metadata.name: logs → (none)` + "\n" +
		`Volume["logs"].spec.disk.match: disk.rotational → (none)` + "\n" +
		`Volume["logs"].spec.size: 0KiB → (none)` + "\n" + `Volume["logs"].spec.use: logs → (none)`
	if got := strings.Join(Changes(before, after), "\n"); got != want {
		t.Errorf("changes:\n%s\nwant:\n%s", got, want)
	}
	patch, err := Diff([]byte(volumeDocuments), merged)
	check(t, err)
	back, err := Merge([]byte(volumeDocuments), patch)
	check(t, err)
	if last, problems := Parse("", back); len(problems) > 0 || !Equal(last, after) {
		t.Errorf("Merge with the patch of Diff gives another configuration: %v\n%s", problems, patch)
	}
}

// TestVolumeUses checks which uses are parts of DATA.
func TestVolumeUses(t *testing.T) {
	for use, part := range map[VolumeUse]bool{UseMount: false, UseStorageClass: false, UseSwap: false, UseEtcd: true, UseImages: true, UseVolumes: true, UseLogs: true} {
		if use.IsPart() != part {
			t.Errorf("%s: %v", use, !part)
		}
	}
}
