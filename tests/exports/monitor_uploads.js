'use strict';

/*
 * Waits for the end of an upload with the AWS SDK, as in the documentation of Stream Manager.
 *
 *     node monitor_uploads.js DIRECTORY FILE_URL      (DIRECTORY holds node_modules)
 *
 * The code is unchanged, except for its comments, syntax errors (the wrong name of the client, a
 * missing brace), and the parts that it leaves to the reader.
 */

const { createRequire } = require('module');
const path = require('path');

const load = createRequire(path.join(path.resolve(process.argv[2]), 'package.json'));
const FILE_URL = process.argv[3];

const {
    StreamManagerClient, ReadMessagesOptions,
    Status, StatusConfig, StatusLevel, StatusMessage,
    util,
} = load('aws-greengrass-core-sdk').StreamManager;

const client = new StreamManagerClient();
client.onConnected(async () => {
    try {
        let isS3UploadComplete = false;
        while (!isS3UploadComplete) {
            try {
                const messages = await client.readMessages("StatusStreamName",
                    new ReadMessagesOptions()
                        .withMinMessageCount(1)
                        .withReadTimeoutMillis(1000));

                messages.forEach((message) => {
                    const statusMessage = util.deserializeJsonBytesToObj(message.payload, StatusMessage);
                    if (statusMessage.status === Status.Success) {
                        console.log(`Successfully uploaded file at path ${FILE_URL} to S3.`);
                        isS3UploadComplete = true;
                    } else if (statusMessage.status === Status.Failure || statusMessage.status === Status.Canceled) {
                        console.log(`Unable to upload file at path ${FILE_URL} to S3. Message: ${statusMessage.message}`);
                        isS3UploadComplete = true;
                    }
                });
                await new Promise((r) => setTimeout(r, 5000));
            } catch (e) {
                // Ignored
            }
        }
    } catch (e) {
        // Properly handle errors.
    }
    client.close();
});
client.onError((err) => {
    console.error(err);
    process.exit(1);
});
