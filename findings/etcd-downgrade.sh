#!/bin/bash
# go.etcd.io/etcd/server v3.7.3 admits no new member while a downgrade is enabled, of no version, and enables a downgrade only from
# the present version of the cluster.
#
# A member without data compares the version of the cluster with a range (etcdserver/cluster_util.go, allowedVersionRange). While a
# downgrade is enabled, the range is the minor version above its own alone: 3.8 for 3.7, 3.7 for 3.6. After the downgrade the cluster
# has version 3.6, so a member of 3.7 or 3.6 ends with an error, and a lost machine cannot be replaced before the downgrade ends.
#
# Downgrade of the API checks that the target is one minor version below the cluster. So it cannot hold a cluster at 3.6 whose members
# are replaced by 3.7 one by one: it rejects 3.6 as long as the cluster has 3.6, and the leader raises the cluster to 3.7 when the last
# member starts.
#
# Seen on 2026-11-29:
#   hold at 3.6 from 3.6: etcdserver: invalid downgrade target version
#   new member while a downgrade is enabled: incompatible with current running cluster
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.26

require go.etcd.io/etcd/server/v3 v3.7.3
MOD
cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"log"
	"net/url"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// start starts the member with a number.
func start(number int, cluster, state string) (*embed.Etcd, error) {
	c := embed.NewConfig()
	at := func(port int) []url.URL { return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port+number)}} }
	c.Name, c.Dir, c.LogLevel = fmt.Sprint("m", number), fmt.Sprint("data", number), "fatal"
	c.ListenClientUrls, c.AdvertiseClientUrls, c.ListenPeerUrls, c.AdvertisePeerUrls = at(23790), at(23790), at(23890), at(23890)
	c.InitialCluster, c.ClusterState = cluster, state
	return embed.StartEtcd(c)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	one := "m1=http://127.0.0.1:23891"
	first, err := start(1, one, embed.ClusterStateFlagNew)
	if err != nil {
		log.Fatal(err)
	}
	<-first.Server.ReadyNotify()
	c := v3client.New(first.Server)
	version := func(minor int64) {
		for v := first.Server.ClusterVersion(); v == nil || v.Minor != minor; v = first.Server.ClusterVersion() {
			if ctx.Err() != nil {
				log.Fatal("the version of the cluster is ", v)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	version(7)
	if _, err := c.Downgrade(ctx, clientv3.DowngradeEnable, "3.6.0"); err != nil {
		log.Fatal(err)
	}
	version(6)
	_, err = c.Downgrade(ctx, clientv3.DowngradeValidate, "3.6.0")
	fmt.Println("hold at 3.6 from 3.6:", err)
	if _, err := c.MemberAddAsLearner(ctx, []string{"http://127.0.0.1:23892"}); err != nil {
		log.Fatal(err)
	}
	_, err = start(2, one+",m2=http://127.0.0.1:23892", embed.ClusterStateFlagExisting)
	fmt.Println("new member while a downgrade is enabled:", err)
}
GO
go mod tidy 2>/dev/null
go run . | tee out
grep -q '^hold at 3.6 from 3.6: etcdserver: invalid downgrade target version$' out
grep -q '^new member while a downgrade is enabled: incompatible with current running cluster$' out
