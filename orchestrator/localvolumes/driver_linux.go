package localvolumes

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// versions are the versions of the CSI specification that the driver supports.
var versions = []string{"1.9.0"}

// driver serves the CSI node service and the registration with the kubelet. It has no CSI
// controller service, because the controller (run.go) watches the API server itself.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	node     string // name of the node
	endpoint string // path of the CSI socket
	version  string // version of Orlop OS
	find     func(pool string) opened
	stores   func() []*store // returns the stores of the open pools
	// changed is called after a volume was mounted, resized or unmounted.
	changed    func()
	registered func(ok bool, detail string) // called with the result from the kubelet
	bind       func(from, to string, flags mount.Flags) error
	mounted    func(target string) (bool, error)
	unmount    func(target string) error
}

// GetInfo returns the name and the socket of the driver to the kubelet, which registers the driver
// (k8s.io/kubelet/pkg/apis/pluginregistration).
func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: Driver, Endpoint: d.endpoint, SupportedVersions: versions}, nil
}

// NotifyRegistrationStatus receives the result of the registration from the kubelet. After a
// failure, the kubelet tries again by itself.
func (d *driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.registered(s.PluginRegistered, s.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Driver, VendorVersion: d.version}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	var all []*csi.NodeServiceCapability
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		all = append(all, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: all}, nil
}

// mountOptions are the mount options that a StorageClass can contain, with their flags.
var mountOptions = map[string]mount.Flags{
	"ro": mount.ReadOnly, "nosuid": mount.NoSuid, "nodev": mount.NoDev, "noexec": mount.NoExec, "noatime": mount.NoAtime,
}

// NodePublishVolume mounts a volume at the target path that the kubelet names. At the first use it
// also creates the volume.
func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if r.GetTargetPath() == "" || r.GetVolumeCapability().GetMount() == nil {
		return nil, status.Error(codes.InvalidArgument, "a volume is mounted as a directory and needs a target path")
	}
	flags := mount.NoSuid | mount.NoDev | mount.NoAtime // the flags of DATA
	if r.GetReadonly() {
		flags |= mount.ReadOnly
	}
	for _, option := range r.GetVolumeCapability().GetMount().GetMountFlags() {
		flag, known := mountOptions[option]
		if !known {
			return nil, status.Errorf(codes.InvalidArgument, "mount option %q is not supported: use ro, nosuid, nodev, noexec or noatime", option)
		}
		flags |= flag
	}
	pool := d.find(r.GetVolumeContext()[parameterPool])
	if pool.store == nil {
		return nil, status.Error(codes.FailedPrecondition, pool.problem)
	}
	if was := r.GetVolumeContext()[attributeFilesystem]; was != pool.filesystem {
		return nil, status.Errorf(codes.NotFound, "volume %s: its data are lost: they were on a disk of node %s that has been erased; "+
			"delete its claim to get a new volume", r.GetVolumeId(), d.node)
	}
	size, err := strconv.ParseInt(r.GetVolumeContext()[attributeSize], 10, 64)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "volume %s: its size cannot be read: %v", r.GetVolumeId(), err)
	}
	err = pool.store.show(r.GetVolumeId(), size, r.GetVolumeContext()[attributeSource], func(dir string) error {
		there, err := d.mounted(r.GetTargetPath())
		if err == nil && !there {
			err = d.bind(dir, r.GetTargetPath(), flags)
		}
		return err
	})
	d.changed()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume unmounts a volume from a path. It is idempotent.
func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if r.GetTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "the target path is missing")
	}
	err := d.unmount(r.GetTargetPath())
	if err == nil {
		// Remove is not recursive. A recursive removal would delete the data of a volume that is
		// still mounted.
		err = os.Remove(r.GetTargetPath())
	}
	if err != nil && !os.IsNotExist(err) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	d.changed() // a copy may wait for the unmount
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume raises the quota of a volume. The volume can be in use.
func (d *driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	size := r.GetCapacityRange().GetRequiredBytes()
	err := fmt.Errorf("volume %s is not on this node: it cannot grow", r.GetVolumeId())
	for _, s := range d.stores() { // the request does not name the pool
		if s.has(r.GetVolumeId()) {
			err = s.grow(r.GetVolumeId(), size)
		}
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	d.changed()
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// NodeGetVolumeStats returns the size and the usage of a volume. For a directory with a project,
// statfs(2) returns the quota and the usage of the project.
func (d *driver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(r.GetVolumePath(), &s); err != nil {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("volume %s: %v", r.GetVolumeId(), err))
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(s.Blocks) * s.Bsize,
			Available: int64(s.Bavail) * s.Bsize, Used: int64(s.Blocks-s.Bfree) * s.Bsize,
		},
		{Unit: csi.VolumeUsage_INODES, Total: int64(s.Files), Available: int64(s.Ffree), Used: int64(s.Files - s.Ffree)},
	}}, nil
}
