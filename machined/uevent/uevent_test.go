package uevent

import (
	"reflect"
	"testing"
)

func TestParse(t *testing.T) {
	got, err := Parse([]byte("add@/devices/pci0000:00/0000:00:03.0\x00ACTION=add\x00SUBSYSTEM=pci\x00MODALIAS=pci:v00001AF4d00001041\x00SEQNUM=7\x00EMPTY=\x00"))
	want := Event{Action: "add", DevPath: "/devices/pci0000:00/0000:00:03.0", Subsystem: "pci", Vars: map[string]string{
		"ACTION": "add", "SUBSYSTEM": "pci", "MODALIAS": "pci:v00001AF4d00001041", "SEQNUM": "7", "EMPTY": ""}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the event is %+v, %v", got, err)
	}
	for _, bad := range []string{"", "\x00", "libudev\x00\xfe\xed", "add", "@/x", "add@x"} {
		if e, err := Parse([]byte(bad)); err == nil {
			t.Errorf("Parse accepts %q as %+v", bad, e)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("add@/x\x00A=b\x00"))
	f.Fuzz(func(t *testing.T, message []byte) {
		if e, err := Parse(message); err == nil && (e.Action == "" || e.DevPath == "") {
			t.Errorf("Parse accepts %q without an action or a path: %+v", message, e)
		}
	})
}
