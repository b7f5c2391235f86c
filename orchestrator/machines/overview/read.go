package overview

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Report is the report of machined about the whole cluster.
type Report struct {
	Health *api.ClusterHealthResponse // nil: machined has not written a report yet
	Access nodespec.AccessPoints
}

// Read reads the file with the report of machined. If the file does not exist yet, Read returns an
// empty Report and no error.
func Read(file string) (Report, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Report{}, nil
	}
	if err != nil {
		return Report{}, fmt.Errorf("health of the cluster: %w", err)
	}
	var written nodespec.ClusterReport
	health := &api.ClusterHealthResponse{}
	err = json.Unmarshal(content, &written)
	if err == nil {
		err = proto.Unmarshal(written.Health, health)
	}
	if err != nil {
		return Report{}, fmt.Errorf("health of the cluster: %s: cannot decode: %w; machined writes it again within a minute", file, err)
	}
	return Report{Health: health, Access: written.Access}, nil
}
