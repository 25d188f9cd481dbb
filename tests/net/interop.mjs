// A js-libp2p peer that looks up the providers of a CID: node interop.mjs MULTIADDR CID COUNT
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import path from 'node:path'

// js-libp2p requires node 22. On node 20, only this function is missing.
Promise.withResolvers ??= function () {
  const all = {}
  all.promise = new Promise((resolve, reject) => Object.assign(all, { resolve, reject }))
  return all
}

const root = process.env.INTEROP_JS
const load = async (name) => {
  const folder = path.join(root, 'node_modules', name)
  const described = createRequire(import.meta.url)(path.join(folder, 'package.json'))
  const entry = described.exports?.['.']?.import?.default ?? described.exports?.['.']?.import
  return import(pathToFileURL(path.join(folder, typeof entry === 'string' ? entry : described.main)))
}
const { createLibp2p } = await load('libp2p')
const { tcp } = await load('@libp2p/tcp')
const { noise } = await load('@chainsafe/libp2p-noise')
const { yamux } = await load('@chainsafe/libp2p-yamux')
const { identify } = await load('@libp2p/identify')
const { ping } = await load('@libp2p/ping')
const { kadDHT } = await load('@libp2p/kad-dht')
const { multiaddr } = await load('@multiformats/multiaddr')
const { CID } = await load('multiformats')

const [address, cid, count] = process.argv.slice(2)
const node = await createLibp2p({
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: {
    identify: identify(),
    ping: ping(),
    dht: kadDHT({ protocol: '/ipfs/kad/1.0.0', clientMode: true, peerInfoMapper: (peer) => peer })
  }
})
await node.dial(multiaddr(address))
for (let tries = 0; node.services.dht.routingTable.size === 0 && tries < 100; tries++) {
  await new Promise((resolve) => setTimeout(resolve, 100))
}
const found = new Set()
for await (const provider of node.contentRouting.findProviders(CID.parse(cid), { signal: AbortSignal.timeout(30000) })) {
  found.add(provider.id.toString())
  if (found.size >= Number(count)) break
}
console.log(JSON.stringify([...found]))
await node.stop()
process.exit(0)
