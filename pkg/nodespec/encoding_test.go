package nodespec

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
)

// TestWriteAnswer checks that WriteAnswer writes valid JSON for a protobuf message with invalid
// UTF-8. It also checks a nil message, and a value that is no message.
func TestWriteAnswer(t *testing.T) {
	var text bytes.Buffer
	answer := &api.EtcdStatusResponse{
		Problem: "no \xff\xfe", Revision: 1 << 60, Alarms: []string{"a\xff"},
		Restored: &api.EtcdRestored{By: "b\xff"}, Members: []*api.EtcdMember{{Name: "m\xff", PeerUrls: []string{"u\xff"}}},
	}
	if err := WriteAnswer(&text, answer); err != nil {
		t.Fatal(err)
	}
	want := &api.EtcdStatusResponse{
		Problem: "no \ufffd\ufffd", Revision: 1 << 60, Alarms: []string{"a\ufffd"},
		Restored: &api.EtcdRestored{By: "b\ufffd"}, Members: []*api.EtcdMember{{Name: "m\ufffd", PeerUrls: []string{"u\ufffd"}}},
	}
	got := &api.EtcdStatusResponse{}
	if err := protojson.Unmarshal(text.Bytes(), got); err != nil || !proto.Equal(got, want) {
		t.Errorf("%s: %v", text.Bytes(), err)
	}
	for answer, want := range map[any]string{
		(*api.EtcdMember)(nil):     "{}",
		UploadResult{Remaining: 1}: `{"uploaded":"","remaining":1}`,
	} {
		text.Reset()
		if err := WriteAnswer(&text, answer); err != nil || strings.TrimSpace(text.String()) != want {
			t.Errorf("%q, %v; want %s", text.String(), err, want)
		}
	}
}

// TestReadRequest checks that ReadRequest decodes messages and other values, and ignores unknown
// fields.
func TestReadRequest(t *testing.T) {
	m, err := ReadRequest[*api.EtcdRemoveMemberRequest](strings.NewReader(`{"member": "a", "new": 1}`))
	if err != nil || m.Member != "a" {
		t.Errorf("%v, %v", m, err)
	}
	if m, err := ReadRequest[*api.EtcdRemoveMemberRequest](strings.NewReader(`"a"`)); err == nil || !strings.HasPrefix(err.Error(), "cannot decode the request: ") {
		t.Errorf("%v, %v", m, err)
	}
	r, err := ReadRequest[ReencryptRequest](strings.NewReader(`{"count": true, "new": 1}`))
	if err != nil || !r.CountOnly {
		t.Errorf("%v, %v", r, err)
	}
}
